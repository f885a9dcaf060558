"""The output phases of a data gradient along one axis (te/data_gradient.py has the mathematics)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd

from tvmconvgrad.spec import Geometry
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.te.zeros import Reads


@dataclass(frozen=True)
class PhaseGroup:
    """The phases r_begin <= r < r_begin + phases of one axis, each with `taps` taps."""

    y: int
    x: int
    stride: int
    pad: int
    step: int
    """The convolution's dilation, in elements of x."""
    r_begin: int
    phases: int
    taps: int

    @property
    def period(self) -> int:
        """The distance between neighbouring taps of one phase, in taps: q above."""
        return self.stride // gcd(self.stride, self.step)

    @property
    def dilation(self) -> int:
        """The distance between what neighbouring taps of one phase read, in elements of y."""
        return self.step // gcd(self.stride, self.step)

    def first(self, r: Index) -> Index:
        """The first position t of phase `r` whose element lies in x."""
        return -((r * self.step - self.pad) // self.stride)

    @cached_property
    def firsts(self) -> list[int]:
        """The first position of each phase."""
        return [int(self.first(r)) for r in range(self.r_begin, self.r_begin + self.phases)]

    @cached_property
    def ends(self) -> list[int]:
        """The end of each phase's positions, exclusive."""
        phases = range(self.r_begin, self.r_begin + self.phases)
        return [(self.x - 1 + self.pad - r * self.step) // self.stride + 1 for r in phases]

    @cached_property
    def reads(self) -> Reads:
        """What the phases' positions read of y."""
        reach = (self.taps - 1) * self.dilation
        return Reads(range(min(self.firsts), max(self.ends)), 1, reach, self.dilation, self.taps, self.y)


@lru_cache(maxsize=64)  # a schedule asks for each tile that it may take
def axis_phase_groups(y: int, x: int, kernel: int, stride: int, dilation: int, pad: int) -> tuple[PhaseGroup, ...]:
    """The phases of one axis, in at most two groups: those with more taps first."""
    period = stride // gcd(stride, dilation)
    more = kernel % period
    with_elements = {r for r in range(min(period, kernel)) if (r * dilation - pad) % stride < x}
    return tuple(
        PhaseGroup(y, x, stride, pad, dilation, r_begin, phases, taps)
        for r_begin, phases, taps in ((0, more, kernel // period + 1), (more, period - more, kernel // period))
        if taps and not with_elements.isdisjoint(range(r_begin, r_begin + phases))
    )


def reaches_all(geometry: Geometry) -> bool:
    """Whether every element of x has a tap that contributes to it."""
    sizes = zip(geometry.k, geometry.strides, geometry.dilations)
    return all(kernel >= stride and gcd(stride, dilation) == 1 for kernel, stride, dilation in sizes)
