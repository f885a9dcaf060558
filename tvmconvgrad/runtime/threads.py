"""How many threads a kernel uses.

TVM keeps a pool of workers for each thread that calls kernels, sized when it is first used. By itself it would take
half of the CPUs and pin its threads to the first cores; here it takes what was asked for and leaves the affinity that
the process has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tvm_ffi

from tvmconvgrad.runtime.native import load_runtime

VARIABLE = "TVMCONVGRAD_NUM_THREADS"
_SHARE_ALL_CORES = -3  # TVM's ThreadGroup::kSpecifyThreadShareAllCore: every worker may run on each of the given CPUs

_configured = threading.local()
_requested: int | None = None
_forked_in: int | None = None
_substitute: ThreadPoolExecutor | None = None


def set_num_threads(count: int) -> None:
    """Use `count` threads for each call from now on, in every thread of this process; results do not depend on it.

    A thread that has called a kernel before keeps its pool and can use at most as many threads as that has, which is
    the number of CPUs or more. Raises TypeError or ValueError unless `count` is a positive int.
    """
    global _requested
    _requested = _checked("num_threads", count)


def get_num_threads() -> int:
    """How many threads a call uses: as set, else by the environment variable TVMCONVGRAD_NUM_THREADS, else all CPUs."""
    if _requested is not None:
        return _requested
    text = os.environ.get(VARIABLE)
    if not text:
        return len(_cpus())
    if not text.isdecimal():
        raise ValueError(f"{VARIABLE}: {text!r} is not a positive number of threads")
    return _checked(VARIABLE, int(text))


def call(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a kernel's function with the threads asked for."""
    if _forked_in is not None and _forked_in == threading.get_ident():
        _call_after_fork(function, *arguments)
        return
    if getattr(_configured, "requested", 0) is not _requested:
        _configure()
    function(*arguments)


def _checked(name: str, count: int) -> int:
    if isinstance(count, bool) or not hasattr(count, "__index__"):
        raise TypeError(f"{name}: {count!r} is not an int")
    if not 1 <= int(count) <= 4096:
        raise ValueError(f"{name}: {count} is out of range, expected 1 to 4096")
    return int(count)


def _cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _configure() -> None:
    load_runtime()
    count, cpus = get_num_threads(), _cpus()
    pool = [str(cpus[i % len(cpus)]) for i in range(max(count, len(cpus)))]
    tvm_ffi.get_global_func("runtime.config_threadpool")(_SHARE_ALL_CORES, count, pool)
    _configured.requested = _requested


def _note_fork() -> None:
    # The child has this thread's pool but none of its workers: a call would wait for them for ever. Another thread
    # of the child makes a pool of its own.
    global _forked_in, _substitute
    if hasattr(_configured, "requested"):
        _forked_in, _substitute = threading.get_ident(), None


def _call_after_fork(function: Callable[..., Any], *arguments: Any) -> None:
    global _substitute
    if _substitute is None:
        _substitute = ThreadPoolExecutor(1, thread_name_prefix="tvmconvgrad")
    _substitute.submit(call, function, *arguments).result()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
