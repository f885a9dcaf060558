"""An exception of a worker, as JSON's types, and the same one in the parent."""

from __future__ import annotations

import importlib
import traceback
from contextlib import suppress
from typing import Any

_PLACES = (
    "builtins",
    "tvmconvgrad.records.choice",
    "tvmconvgrad.common.errors",
    "tvmconvgrad.files.temporary",
    "tvmconvgrad.workers.errors",
)
"""Modules with exceptions that the parent can have: they import no compiler."""


class WorkerFailed(RuntimeError):
    """There is no answer: the process ended, or took too long. The text says how."""


class RaisedInWorker(WorkerFailed):
    """Something was raised in the process: the text names it, and `error` is the same for the parent to raise."""

    def __init__(self, about: dict[str, Any]) -> None:
        super().__init__(f"{about['classes'][0][1]}: {about['text']}")
        self.error = _rebuilt(about)


class InWorker(Exception):
    """Where in a worker an exception comes from."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"


def describe(error: Exception) -> dict[str, Any]:
    """All that there is to know of an exception."""
    classes = [(each.__module__, each.__qualname__) for each in type(error).__mro__ if issubclass(each, Exception)]
    plain = (str, int, float, type(None))
    args = list(error.args) if all(isinstance(each, plain) for each in error.args) else [str(error)]
    if isinstance(error, OSError) and error.filename is not None and isinstance(error.filename, str):
        args = [error.errno, error.strerror, error.filename]
    return {"classes": classes, "args": args, "text": str(error), "trace": "".join(traceback.format_exception(error))}


def _rebuilt(about: dict[str, Any]) -> Exception:
    """The exception by its name and words; one of the nearest base class that the parent has, with the name before."""
    error = _nearest(about)
    meant = isinstance(error, (ValueError, TypeError)) or type(error).__module__ != "builtins"
    if not meant:
        error.__cause__ = InWorker(about["trace"])
    return error


def _nearest(about: dict[str, Any]) -> Exception:
    for place, (module, name) in enumerate(about["classes"]):
        kind = getattr(importlib.import_module(module), name, None) if module in _PLACES else None
        if kind is None or kind in (Exception, BaseException):
            continue
        with suppress(Exception):  # it may be made from other things than its words
            return _made(kind, about["args"]) if place == 0 else kind(_named(about))
    return RuntimeError(_named(about))


def _made(kind: type[Exception], args: list[Any]) -> Exception:
    """An exception with such arguments, whatever its class makes them of."""
    if kind.__module__ == "builtins":
        return kind(*args)
    found = kind.__new__(kind, *args)
    found.args = tuple(args)
    return found


def _named(about: dict[str, Any]) -> str:
    return f"{about['classes'][0][1]}: {about['text']}"
