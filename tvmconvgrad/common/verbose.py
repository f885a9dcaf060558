"""Records of Python's logging, and lines on standard output in the format of ONEDNN_VERBOSE.

The logger `tvmconvgrad` gets a record at the level DEBUG of where a kernel comes from, and of why a tensor is copied; a
call that finds its kernel by a shortcut logs nothing. With TVMCONVGRAD_VERBOSE=1 each build and each call of a kernel
prints a line. A kernel reads the variable at its first call, so that calls cost nothing more where it is not set.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from tvmconvgrad.common import process
from tvmconvgrad.spec import Problem

VARIABLE = "TVMCONVGRAD_VERBOSE"
log = logging.getLogger("tvmconvgrad")
log.addHandler(logging.NullHandler())
_TEMPLATE = "operation,engine,operator,implementation,tensors,target,attributes,exec_time"

Call = TypeVar("Call", bound=Callable[..., object])


@process.forgets
def forget() -> None:
    """Read the variable again, for kernels that were not called before."""
    is_on.cache_clear()


@functools.lru_cache(maxsize=1)
def is_on() -> bool:
    """Whether lines are printed. The first time, prints the names of their fields. ValueError unless it is 0 or 1."""
    text = os.environ.get(VARIABLE, "").strip() or "0"
    if text not in ("0", "1"):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected 0 or 1")
    if text == "1":
        _print("info", f"template:{_TEMPLATE}")
    return text == "1"


def describe(operation: str, problem: Problem, target: str, schedule: str) -> str:
    """All fields of a line but the time, joined by commas. Commas within a field become semicolons."""
    engine = "gpu" if target.startswith("cuda") else "cpu"
    dtypes = (problem.dtype, problem.dtype, problem.output_dtype)
    words = ((name, dtype, *rest) for dtype, (name, *rest) in zip(dtypes, problem.tensor_words))
    tensors = " ".join(map(":".join, words))
    attributes = " ".join(":".join(words) for words in problem.attribute_words)
    fields = (operation, engine, problem.operator, schedule.partition("(")[0], tensors, target, attributes)
    return ",".join(field.replace(",", ";") for field in fields)


def report(described: str, seconds: float) -> None:
    """Print a line with the time in milliseconds, if lines are printed."""
    if is_on():
        _print("primitive", f"{described},{seconds * 1e3:.6g}")


def timed(call: Call, describe_call: Callable[[], str]) -> Call:
    """Wrap a function so that each successful call, one that returns 0 or None, prints a line.

    Returns the function itself if no lines are printed.
    """
    if not is_on():
        return call
    described = describe_call()

    def timed_call(*inputs: object) -> object:
        begin = time.perf_counter()
        status = call(*inputs)
        seconds = time.perf_counter() - begin
        if not status:
            report(described, seconds)
        return status

    return timed_call  # type: ignore[return-value]  # the same arguments and result


def _print(*fields: str) -> None:
    print("tvmconvgrad_verbose", "v1", *fields, sep=",", flush=True)
