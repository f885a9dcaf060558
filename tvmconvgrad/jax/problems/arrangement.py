"""From the order of axes that an array of JAX's has to the one that a kernel reads or writes, and back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvmconvgrad.spec.values import Shape

_GROUPS = "groups"


@dataclass(frozen=True)
class Arrangement:
    """Reshapes `source` to `split`, transposes that by `order`, and reshapes the result to `shape`."""

    source: Shape
    split: Shape
    order: Shape
    shape: Shape

    @property
    def moved(self) -> int:
        """How many elements change their places in memory; 0 if it is the same memory with other axes."""
        long = [axis for axis in self.order if self.split[axis] != 1]
        return prod(self.source) if long != sorted(long) else 0

    @property
    def inverse(self) -> Arrangement:
        """The way back."""
        back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return Arrangement(self.shape, tuple(self.split[axis] for axis in self.order), back, self.source)

    def __call__(self, value: Any, lax: Any) -> Any:
        """An array of shape `source`, rearranged by the module `jax.lax`."""
        if value.shape != self.split:
            value = lax.reshape(value, self.split)
        if list(self.order) != sorted(self.order):
            value = lax.transpose(value, self.order)
        return value if value.shape == self.shape else lax.reshape(value, self.shape)


def arrangement(
    source: Sequence[tuple[str, int]], wanted: Sequence[str], groups: int = 1, of: str = "", to: str = ""
) -> Arrangement:
    """What puts axes, given by letters and sizes in the order of memory, into the order `wanted`.

    The axis `of` has all `groups` in `source`, and the axis `to` has them in the result.
    """
    parts = [part for axis in source for part in _parts(axis, groups, of)]
    letters, split = zip(*parts)
    taken = [[_GROUPS, letter] if letter == to and groups > 1 else [letter] for letter in wanted]
    places = [[letters.index(name) for name in names] for names in taken]
    shape = tuple(prod(split[place] for place in each) for each in places)
    return Arrangement(tuple(size for _, size in source), split, tuple(itertools.chain.from_iterable(places)), shape)


def _parts(axis: tuple[str, int], groups: int, of: str) -> Iterator[tuple[str, int]]:
    letter, size = axis
    if letter == of and groups > 1:
        yield _GROUPS, groups
        size //= groups
    yield letter, size
