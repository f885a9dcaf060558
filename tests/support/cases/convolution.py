"""A convolution by its numbers alone, in the tests' own words; written against the specification, not the package.

Per spatial axis: the sizes of x, y and the kernel k, s stride, d dilation. Tensors have one canonical layout
here: x (N, C, *x), y (N, O, *y), and the filter w (O, C/groups, *K), of which all others are permutations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]
"""The canonical tensors of one convolution by the names x, y and w."""


@dataclass(frozen=True)
class Convolution:
    """All sizes of one convolution. Only what the taps touch depends on pads_begin; pads_end is for attributes."""

    batch: int
    groups: int
    c: int
    o: int
    x: Shape
    y: Shape
    k: Shape
    strides: Shape
    dilations: Shape
    pads_begin: Shape
    pads_end: Shape

    @property
    def rank(self) -> int:
        return len(self.k)

    @property
    def extents(self) -> Shape:
        """The dilated kernel's span on each axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.k, self.dilations, strict=True))

    @property
    def shapes(self) -> dict[str, Shape]:
        """The canonical shapes of x, y and w."""
        return {
            "x": (self.batch, self.c, *self.x),
            "y": (self.batch, self.o, *self.y),
            "w": (self.o, self.c // self.groups, *self.k),
        }

    @property
    def beyond(self) -> Shape:
        """Elements at the end of x that no tap reaches: output_padding, seen from the transposed side."""
        reach = zip(self.x, self.y, self.strides, self.extents, self.pads_begin, self.pads_end, strict=True)
        return tuple(x - (s * (y - 1) + e - b - p) for x, y, s, e, b, p in reach)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.o * prod(self.y) * (self.c // self.groups) * prod(self.k)

    def summands(self, result: str) -> int:
        """The most products that any element of a result (x, y or w) sums."""
        if result == "w":
            return self.batch * prod(self.y)
        per_group = self.o // self.groups if result == "x" else self.c // self.groups
        return max(1, per_group) * prod(self.k)

    def bound(self, result: str, limit: int = 2**24) -> int:
        """The largest integer magnitude of operands for which all sums stay below `limit`, exact in f32; 0: none."""
        most = 0
        while most < 9 and self.summands(result) * (most + 1) ** 2 < limit:
            most += 1
        return most

    def resized(self, batch: int) -> Convolution:
        return replace(self, batch=batch)


def same_pads(auto_pad: str, x: int, y: int, extent: int, stride: int, output_padding: int = 0) -> tuple[int, int]:
    """The pads of same_upper (odd element at the end) and same_lower (at the beginning)."""
    total = max(0, stride * (y - 1) + extent - x + output_padding)
    return (total // 2, total - total // 2) if auto_pad == "same_upper" else (total - total // 2, total // 2)


def integers(rng: np.random.Generator, shape: Shape, bound: int) -> Array:
    """Integers of magnitude up to `bound` as f32, few of them zero."""
    values = rng.integers(-bound, bound + 1, size=shape, dtype=np.int8)
    return values.astype(np.float32)


def operands(convolution: Convolution, result: str, seed: int = 0) -> Tensors:
    """Integer operands of the gradient whose result is x, y or w, such that f32 sums them exactly."""
    bound = convolution.bound(result)
    if not bound:
        raise ValueError(f"{convolution} sums too many products to stay exact in f32")
    rng = np.random.default_rng(seed)
    return {name: integers(rng, shape, bound) for name, shape in convolution.shapes.items() if name != result}
