"""Where an array lies in memory: unaligned, strided, reversed, read-only, or beside a page that nobody may touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.cases.convolution import Array
from tests.support.memory.guarded import guarded_copy

FILL = 7
"""What lies between the elements of a strided array."""


def unaligned(array: Array) -> Array:
    """One byte further than the type asks for."""
    memory = np.empty(array.nbytes + 1, np.uint8)
    found: Array = memory[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def strided(array: Array) -> Array:
    """Every second element of the last axis."""
    memory = np.full((*array.shape[:-1], 2 * array.shape[-1]), FILL, array.dtype)
    memory[..., ::2] = array
    found: Array = memory[..., ::2]
    return found


def backwards(array: Array) -> Array:
    """Backwards along all axes."""
    turned = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[turned])[turned]


def in_fortrans_order(array: Array) -> Array:
    found: Array = np.asfortranarray(array)
    return found


def read_only(array: Array) -> Array:
    copy: Array = array.copy()
    copy.flags.writeable = False
    return copy


def before_a_forbidden_page(array: Array) -> Array:
    return guarded_copy(array, at_end=True) if array.size else array


def behind_a_forbidden_page(array: Array) -> Array:
    return guarded_copy(array, at_end=False) if array.size else array


PLACES: dict[str, Callable[[Array], Array]] = {
    "plain": np.ascontiguousarray,
    "unaligned": unaligned,
    "strided": strided,
    "backwards": backwards,
    "fortran": in_fortrans_order,
    "read-only": read_only,
    "before a forbidden page": before_a_forbidden_page,
    "behind a forbidden page": behind_a_forbidden_page,
}


def between(view: Array) -> Array:
    """What lies between the elements of a strided array."""
    base: Any = view.base
    found: Array = base[..., 1::2] if isinstance(base, np.ndarray) else view[:0]
    return found
