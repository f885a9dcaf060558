"""The kernels that programs call: known by a number, and built in the background while JAX lowers and XLA compiles."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future

from tvmconvgrad.frontends.errors import first_line
from tvmconvgrad.futures import in_background
from tvmconvgrad.jax.handler import handler
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime.kernel import PHYSICAL_MEMORY, Kernel
from tvmconvgrad.runtime.native import Function
from tvmconvgrad.spec import Problem

_lock = threading.Lock()
_futures: dict[int, Future[Kernel]] = {}
"""Kernels by their numbers. They stay for good: any program that was compiled may call them."""


def number_of(problem: Problem, target: Target | None) -> int:
    """The number of a kernel: the same in each process."""
    digest = hashlib.sha256(f"{problem.key} {target}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def ask(problem: Problem, target: Target | None) -> int:
    """The number of a kernel, whose build is started unless it was before. Calls wait for its end.

    Raises ValueError, which says why, if it is known already that there will be no kernel.
    """
    number = number_of(problem, target)
    with _lock:
        future = _futures.get(number)
        if future is None:
            future = _futures[number] = _begin(number, problem, target)
    if future.done():
        reason = _failure(future)
        if reason:
            raise ValueError(reason)
    return number


def _begin(number: int, problem: Problem, target: Target | None) -> Future[Kernel]:
    try:
        future = in_background(problem, target, None, True)
    except Exception as error:  # XLA computes after any error, and the report shows it
        future = Future()
        future.set_exception(error)
        return future
    handler().expect(number)
    future.add_done_callback(lambda done: _settle(number, done))
    return future


def _settle(number: int, future: Future[Kernel]) -> None:
    reason = _failure(future)
    if reason:
        again = "the next compilation of this program, after jax.clear_caches(), leaves it to XLA"
        handler().settle(number, None, f"tvmconvgrad: a kernel could not be built: {reason}; {again}")
    else:
        function = future.result().function
        assert isinstance(function, Function)
        handler().settle(number, function.address)


def _failure(future: Future[Kernel]) -> str:
    """Why a future has no kernel that can be called; "" if it has one."""
    error = future.exception()
    if error is not None:
        return first_line(error)
    if future.result().workspace_bytes > PHYSICAL_MEMORY:
        return "a workspace that exceeds this machine's memory"
    return ""
