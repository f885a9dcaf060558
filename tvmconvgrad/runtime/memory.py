"""Kernels in memory: each is loaded once, and the least recently used are dropped when there are too many.

A kernel that is in use is never unloaded: its library lives as long as anything refers to it (runtime/native.py), for
example a Kernel that the user holds, or a call in another thread. What is kept here beyond that is bounded.

A call that finds its kernel by a shortcut (operators/compiled.py) is not recorded here, since recording would take as
long as a tiny layer. So all shortcuts are dropped from time to time, at a `turn`, and the next call of each kernel is
recorded again. Kernels recorded since the last turn are `_young`; no shortcut leads to the others. Of these, the one
recorded longest ago is dropped first.
"""

from __future__ import annotations

import errno
import gc
import os
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tvmconvgrad.common import process
from tvmconvgrad.runtime.cuda.function import CudaFunction
from tvmconvgrad.runtime.native import Function

VARIABLE = "TVMCONVGRAD_KERNELS_IN_MEMORY"
DEFAULT = 1024
"""A kernel takes about six of the 65,530 memory maps that Linux allows a process, and another library may need many."""
_MOST = 1_000_000
_SCARCE = (None, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")

T = TypeVar("T")


class Loaded(NamedTuple):
    """A kernel's code in this process, and what its builder said of it."""

    function: Function | CudaFunction
    facts: dict[str, Any]


def bound() -> int:
    """How many kernels are kept in memory. ValueError for a variable that is no number from 1 to a million."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return DEFAULT
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected an int from 1 to {_MOST}")
    return int(text)


class KernelMemory:
    """The kernels of this process by whatever tells one from another."""

    def __init__(self) -> None:
        self._young: dict[Hashable, Loaded] = {}
        self._old: dict[Hashable, Loaded] = {}
        self._alive: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()  # functions
        self._facts: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._turns = process.Turns()
        self._shortcuts: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def shortcut(self, forget: Callable[[], object]) -> None:
        """Have a function called that forgets shortcuts: ways to a kernel that do not come by here."""
        self._shortcuts.append(forget)

    def get(self, key: Hashable, load: Callable[[], Loaded]) -> Loaded:
        """The kernel of a key: the one in memory, or what `load` returns, called by one thread for all."""
        found = self.find(key)
        if found is None:
            most = bound()
            with self._turns.of(key):
                found = self.find(key) or self._keep(key, load(), most)
        return found

    def with_room(self, load: Callable[[], T]) -> T:
        """What a function loads into memory; where the system refuses that, once more with room made for it.

        MemoryError where the system allows this process no more.
        """
        try:
            return load()
        except (OSError, MemoryError) as reason:
            if not _wants_room(reason):
                raise
        self.drop()
        try:
            return load()
        except (OSError, MemoryError) as reason:
            if not (_wants_room(reason) and self._alive):
                raise
            raise MemoryError(_no_room(reason)) from reason

    def drop(self) -> None:
        """Unload all kernels that are not in use."""
        with process.lock:
            self._clear()
        gc.collect()  # what users have dropped, too

    def forget(self) -> None:
        """As if none had been loaded: what is asked for is loaded anew, even if somebody holds the same."""
        with process.lock:
            self._clear()
            self._alive.clear()

    def find(self, key: Hashable) -> Loaded | None:
        """The kernel of a key where it is in memory."""
        with process.lock:
            found = self._young.pop(key, None) or self._old.pop(key, None)
            if found is not None:
                self._young[key] = found
                return found
            function = self._alive.get(key)
            return None if function is None else self._keep(key, Loaded(function, self._facts[function]), bound())

    def _keep(self, key: Hashable, loaded: Loaded, most: int) -> Loaded:
        with process.lock:
            if len(self._young) > most * 3 // 4:  # early: those in use come by before it is theirs to go
                self._turn()
            while len(self) >= most:
                del self._old[next(iter(self._old))]
            self._young[key] = loaded
            self._alive[key] = loaded.function
            self._facts[loaded.function] = loaded.facts
        return loaded

    def _turn(self) -> None:
        self._old |= self._young
        self._young.clear()
        self._forget_shortcuts()

    def _clear(self) -> None:
        # not by a turn: where kernels go since there is no memory, there is none to put them together
        self._young.clear()
        self._old.clear()
        self._forget_shortcuts()

    def _forget_shortcuts(self) -> None:
        for forget in self._shortcuts:
            forget()


def _wants_room(reason: Exception) -> bool:
    """Whether something may have failed for want of memory, memory maps or file descriptors.

    The system's loader tells no number: "failed to map segment" is all it says where it got no memory, and where the
    folder's files must not be executed. No kernel is then in memory that was to be kept.
    """
    return isinstance(reason, MemoryError) or getattr(reason, "errno", None) in _SCARCE


def _no_room(reason: Exception) -> str:
    maps = "an unknown number"
    with suppress(OSError, MemoryError), _MAPS.open("rb") as lines:
        maps = f"{sum(1 for _ in lines)} of {_MOST_MAPS.read_text().strip()}"
    return (
        f"a kernel cannot be loaded ({reason or 'no memory'}), and no other one is left in memory that is not in use. "
        f"This process has {maps} memory maps (sysctl vm.max_map_count), of which a kernel takes about six: hold fewer "
        "Kernel objects, or allow more"
    )


kernels = KernelMemory()
process.forgets(kernels.forget)
