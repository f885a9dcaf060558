"""Arrays between forbidden pages: touching a byte outside of one ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from tests.support.cases.convolution import Array, Shape

_PROTECTION_NONE = 0


def guarded(shape: Shape, dtype: np.dtype[Any], *, at_end: bool) -> Array:
    """Zeros with a forbidden page right after the last byte, or right before the first. For Unix only."""
    size = int(np.prod(shape)) * dtype.itemsize
    page = mmap.PAGESIZE
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for forbidden in (address, address + (pages + 1) * page):
        if protect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), _PROTECTION_NONE):
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = page + (pages * page - size if at_end else 0)
    array: Array = np.frombuffer(memory, np.uint8, size, begin).view(dtype).reshape(shape)
    return array


def guarded_copy(array: Array, *, at_end: bool) -> Array:
    copy = guarded(array.shape, array.dtype, at_end=at_end)
    copy[...] = array
    return copy
