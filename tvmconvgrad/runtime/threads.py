"""How many threads a kernel uses: one pool for the process, whose size the user sets."""

from __future__ import annotations

import os

from tvmconvgrad.runtime import native
from tvmconvgrad.spec.values import parse_int

VARIABLE = "TVMCONVGRAD_NUM_THREADS"
_MOST = 4096

_requested: int | None = None
_ready = False


def set_num_threads(count: int) -> None:
    """Use `count` threads for each call from now on, in every thread of this process; results do not depend on it.

    A call that comes while another one uses the pool runs on its own thread alone. The affinity of threads is left as
    it is. Raises TypeError or ValueError unless `count` is an int from 1 to 4096.
    """
    global _requested, _ready
    _requested = _checked("num_threads", count)
    _ready = False


def get_num_threads() -> int:
    """How many threads a call uses: as set, else by the environment variable TVMCONVGRAD_NUM_THREADS, else all CPUs.

    All CPUs that this process may run on, when the first kernel was called. ValueError for a variable that is no
    number from 1 to 4096.
    """
    if _requested is not None:
        return _requested
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected an int from 1 to {_MOST}")
    return _checked(VARIABLE, int(text))


def prepare() -> None:
    """Tell the pool how many threads to use, unless it knows."""
    global _ready
    if not _ready:
        native.set_threads(get_num_threads())
        _ready = True


def _checked(name: str, count: object) -> int:
    number = parse_int(name, count, low=1)
    if number > _MOST:
        raise ValueError(f"{name}: got {number}, expected an int from 1 to {_MOST}")
    return number
