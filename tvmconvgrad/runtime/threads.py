"""How many threads a kernel uses: one pool for the process, whose size the user sets."""

from __future__ import annotations

import os
from collections.abc import Callable

from tvmconvgrad.runtime import native
from tvmconvgrad.runtime.cpus import usable_cpus
from tvmconvgrad.spec.values import parse_int

VARIABLE = "TVMCONVGRAD_NUM_THREADS"
OPENMP = "OMP_NUM_THREADS"
_MOST = 4096

_requested: int | None = None
_bound: Callable[[], int] | None = None
_usual: int | None = None  # what nobody has set, as it was at the first call
_told: int | None = None  # what the pool knows
_ready = False  # whether that stays so
_followed: int | None = None  # the bound by which the pool was told


def set_num_threads(count: int) -> None:
    """Use `count` threads for each call from now on, in every thread of this process; results do not depend on it.

    A call that begins while another one uses the thread pool runs on its own thread alone. If the system gives fewer
    threads, a call uses those. The affinity of threads is not changed. Raises TypeError or ValueError unless `count` is
    an int from 1 to 4096.
    """
    global _requested
    _requested = _checked("num_threads", count)
    forget()
    prepare()  # now, since not all calls come by Python


def get_num_threads() -> int:
    """The number of threads that a call uses.

    It is the first of these that is set: the number given to `set_num_threads`, the environment variable
    TVMCONVGRAD_NUM_THREADS, the first number of OMP_NUM_THREADS, all CPUs that the affinity mask and a container's
    quota, rounded up, allow. The last two are read when the first kernel is called; after a PyTorch tensor was passed,
    they are limited to torch.get_num_threads(). Raises ValueError if TVMCONVGRAD_NUM_THREADS is not a number from 1 to
    4096; in OMP_NUM_THREADS such values are ignored.
    """
    chosen = _chosen()
    if chosen is not None:
        return chosen
    return _within(_default() if _usual is None else _usual, None if _bound is None else _bound())


def prepare() -> None:
    """Pass the number of threads to the pool, unless it has it already."""
    if not (_ready or (_bound is not None and _bound() == _followed)):
        _prepare()


def follow(count: Callable[[], int]) -> None:
    """Limit calls to `count()` threads, PyTorch's number, which may change; unless the user sets a number."""
    global _bound
    _bound = count
    forget()


def forget() -> None:
    """Find the number out anew, at the next call."""
    global _usual, _ready, _followed
    _usual, _ready, _followed = None, False, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)  # a worker process may have fewer CPUs


def _prepare() -> None:
    global _usual, _told, _ready, _followed
    count, bound = _chosen() if _usual is None else None, None
    if count is None:
        _usual = _default() if _usual is None else _usual
        bound = None if _bound is None else _bound()
        count = _within(_usual, bound)
    if count != _told:
        native.set_threads(count)
        _told = count
    _ready, _followed = bound is None, bound


def _chosen() -> int | None:
    """The number that somebody has set for this package."""
    if _requested is not None:
        return _requested
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not _is_number(text):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected an int from 1 to {_MOST}")
    return _checked(VARIABLE, int(text))


def _default() -> int:
    first = os.environ.get(OPENMP, "").partition(",")[0].strip()
    number = int(first) if _is_number(first) else 0
    return min(number, _MOST) or min(usable_cpus(), _MOST)


def _within(count: int, bound: int | None) -> int:
    return count if bound is None else max(1, min(count, bound))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _checked(name: str, count: object) -> int:
    number = parse_int(name, count, low=1)
    if number > _MOST:
        raise ValueError(f"{name}: got {number}, expected an int from 1 to {_MOST}")
    return number
