"""How a stage sees one spatial axis of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tvm import ir

Index: TypeAlias = ir.Expr


@dataclass(frozen=True)
class PaddedView:
    """How a stage of `extent` elements reads one spatial axis of a tensor of `size` elements.

    Element i of the stage is element i * step - shift of the tensor, or zero outside of it. Where the elements of
    `taps` are gathered side by side, it is element (i // taps) * step + (i % taps) * dilation - shift. With
    implicit padding the stage stores no zeros: the sum's indices may lie outside of it, and a later rewrite must leave
    those products out.
    """

    size: int
    extent: int
    shift: int = 0
    step: int = 1
    implicit: bool = False
    taps: int = 1
    dilation: int = 0

    def with_implicit_padding(self) -> PaddedView:
        """A view of the same axis that stores no zeros: itself if it reads no padding."""
        return self if self.is_inside else PaddedView(self.size, self.size, implicit=True)

    @property
    def is_inside(self) -> bool:
        """Whether every element of the stage lies in the tensor: the view reads no padding."""
        return self.shift <= 0 and self._last < self.size

    @property
    def _last(self) -> int:
        """Index in the tensor of the stage's last element; may be outside."""
        return (self.extent // self.taps - 1) * self.step + (self.taps - 1) * self.dilation - self.shift

    def moved(self, index: Index) -> Index:
        """The element of the tensor at the stage's `index`, plus `shift`."""
        if self.taps == 1:
            return index * self.step
        return index // self.taps * self.step + index % self.taps * self.dilation

    def inside(self, index: Index) -> list[Index]:
        """The conditions for the stage's element at `index` to lie in the tensor; those that always hold are left
        out."""
        low = [self.moved(index) >= self.shift] if self.shift > 0 else []
        return low + ([self.moved(index) < self.shift + self.size] if self._last >= self.size else [])
