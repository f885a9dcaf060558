"""What happens, for whoever wants to see it: records of Python's logging, and lines as oneDNN prints them.

The logger `tvmconvgrad` is told at the level DEBUG where a kernel comes from and why a tensor is copied. A call that
finds its kernel by a shortcut tells nothing. TVMCONVGRAD_VERBOSE=1 prints a line for each kernel that is built and for
each call, in the manner of ONEDNN_VERBOSE. A kernel asks once whether its calls are to be printed: where not, they are
what they would be without this file.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from tvmconvgrad import process
from tvmconvgrad.spec import Problem

VARIABLE = "TVMCONVGRAD_VERBOSE"
log = logging.getLogger("tvmconvgrad")
log.addHandler(logging.NullHandler())
_TEMPLATE = "operation,engine,operator,implementation,tensors,target,attributes,exec_time"

Call = TypeVar("Call", bound=Callable[..., object])


@process.forgets
def forget() -> None:
    """Read the variable anew, for kernels that have not been called."""
    is_on.cache_clear()


@functools.lru_cache(maxsize=1)
def is_on() -> bool:
    """Whether lines are printed; the first time, after a line with their fields. ValueError for a nonsensical one."""
    text = os.environ.get(VARIABLE, "").strip() or "0"
    if text not in ("0", "1"):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected 0 or 1")
    if text == "1":
        _print("info", f"template:{_TEMPLATE}")
    return text == "1"


def describe(operation: str, problem: Problem, target: str, schedule: str) -> str:
    """All fields of a line but the time. What has commas gets semicolons there."""
    engine = "gpu" if target.startswith("cuda") else "cpu"
    tensors = " ".join(":".join((name, problem.dtype, *rest)) for name, *rest in problem.tensor_words)
    attributes = " ".join(":".join(words) for words in problem.attribute_words)
    fields = (operation, engine, problem.operator, schedule.partition("(")[0], tensors, target, attributes)
    return ",".join(field.replace(",", ";") for field in fields)


def report(described: str, seconds: float) -> None:
    """Print a line, with the time in milliseconds, where lines are printed."""
    if is_on():
        _print("primitive", f"{described},{seconds * 1e3:.6g}")


def timed(call: Call, describe_call: Callable[[], str]) -> Call:
    """A function that prints a line for each call that has done its work: it returned 0 or None.

    The function itself where no lines are printed.
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

    return timed_call  # type: ignore[return-value]  # it takes and returns the same


def _print(*fields: str) -> None:
    print("tvmconvgrad_verbose", "v1", *fields, sep=",", flush=True)
