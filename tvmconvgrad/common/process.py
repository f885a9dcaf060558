"""What a process shares among its threads, and what a fork makes of it. Three rules keep both right:

* What threads share changes under `lock` alone. A fork waits for it: a child never finds it taken, or what it guards
  half done: a module that is half imported, a library that is half loaded. So nothing that takes long is done under it.
* What takes long is done without it. Threads that need the same wait for each other by `Turns`, which are all free in a
  child: the thread that had one is not there.
* What is remembered can be forgotten: whoever remembers says how by `forgets`, and `forget` does it all.

This is imported by all of the package, and imports nothing of it.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_LONGEST = 20.0  # seconds that a fork waits for the lock: whoever holds it longer than that is stuck


lock = threading.RLock()
"""Guards all that threads share. A module is imported under it where that is done late, on the way of a call."""

forks = 0
"""How many there were between the first process and this one."""


def _wait_for_lock() -> None:
    lock.acquire(timeout=_LONGEST)


def _free_lock() -> bool:
    """Whether a fork had it: not where it came too late, or a signal ended the wait."""
    try:
        lock.release()
    except RuntimeError:
        return False
    return True


def _begin_as_child() -> None:
    global lock, forks
    forks += 1
    if not _free_lock():
        lock = threading.RLock()  # the other one is of a thread that is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_lock, after_in_parent=_free_lock, after_in_child=_begin_as_child)


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal's handler may come for what its thread is making


class Turns:
    """One thread at a time for each key. The others wait; but in a forked child for none that was left behind."""

    def __init__(self) -> None:
        self._taken: weakref.WeakValueDictionary[tuple[int, Hashable], _Turn] = weakref.WeakValueDictionary()

    @contextmanager
    def of(self, key: Hashable) -> Iterator[None]:
        """A block that no other thread is in with this key."""
        with lock:
            turn = self._taken.setdefault((forks, key), _Turn())
        with turn.lock:
            yield


def once(make: Callable[[], T]) -> Callable[[], T]:
    """`functools.cache` of a function that must run once: threads that call it meanwhile wait for its result. If it
    raises, the next call tries again."""
    turns = Turns()
    kept: list[T] = []

    @functools.wraps(make)
    def made() -> T:
        if not kept:
            with turns.of(made):
                if not kept:
                    kept.append(make())
        return kept[0]

    return made


@functools.cache
def version(package: str) -> str:
    """Of an installed package, which is not imported."""
    with lock:
        import importlib.metadata  # a fifth of the time that this package takes, and not for bundled kernels

        return importlib.metadata.version(package)


_forgets: list[Callable[[], object]] = []


def forgets(action: Callable[[], T]) -> Callable[[], T]:
    """Have `forget` call a function, which lets go of something that is remembered."""
    _forgets.append(action)
    return action


def forget() -> None:
    """As if this process had just begun: no kernel in memory, no bundle in use, no tuning log read.

    Kernels that somebody holds stay as they are.
    """
    with lock:
        for action in _forgets:
            action()
