"""The services that every library carries (csrc/services.c), as a test calls them or puts others in their place."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.runtime.layers import FILTERS
from tests.support.cases.case import Case
from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.kernels import describe
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.native import load_function

TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, TASK, ctypes.c_void_p, ctypes.c_int)
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


class Services(ctypes.Structure):
    """What a library can be given in place of its own services."""

    _fields_ = (("launch", LAUNCH), ("allocate", ALLOCATE), ("release", RELEASE))


def own_library(case: Case) -> tuple[Any, Kernel]:
    """A library of its own of a kernel that has been built, and the kernel on top of it."""
    kernel = case.call.compile()
    entry = KernelCache().load(describe(kernel.problem, kernel.target))
    assert entry is not None
    function = load_function(entry.library, kernel.problem)
    function.library.tvmconvgrad_use.argtypes = [ctypes.c_void_p]
    return function.library, Kernel(kernel.problem, kernel.target, kernel.schedule, kernel.workspace_bytes, function)


@functools.cache
def _library_with_threads() -> Any:
    """It stays loaded: its threads run its code for ever. Of a process's own libraries only the first has threads."""
    library, _ = own_library(FILTERS)
    library.tvmconvgrad_services.restype = ctypes.POINTER(Services)
    return library


@contextmanager
def own_threads(count: int) -> Iterator[Any]:
    """A library's `launch` while it has so many threads."""
    library = _library_with_threads()
    library.tvmconvgrad_set_threads(count)
    yield library.tvmconvgrad_services().contents.launch
    library.tvmconvgrad_set_threads(1)
