"""Which tensor of a convolution of JAX is which of the specification's three.

Each index of its tensors is bound by `lhs_dilation * lhs = window_strides * out + rhs_dilation * rhs - pad`, and each
of the specification's sums by `x = stride * y + dilation * filter - pad`. So a tensor whose step is 1 can be x, and
either of the others the filter. A filter that changes its side of the equation is reversed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvmconvgrad import spec
from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.jax.problems.convolution import LHS, OUT, RHS


@dataclass(frozen=True)
class Roles:
    """The three tensors of the specification's sum y = conv(x, w), each "lhs", "rhs" or "out".

    `axes` are the letters of each tensor's first two axes in the order of JAX's dimension numbers: batch N, channels of
    x C, and of y O.
    """

    part: Part
    x: str
    y: str
    w: str
    axes: Mapping[str, str]

    @property
    def is_reversed(self) -> bool:
        """Whether the geometry's taps run the other way than JAX's, and JAX has the groups in C."""
        return self.x != LHS


ROLES = (
    Roles(Part.FORWARD, LHS, OUT, RHS, {LHS: "NC", RHS: "OC", OUT: "NO"}),
    Roles(Part.DATA, OUT, LHS, RHS, {LHS: "NO", RHS: "CO", OUT: "NC"}),
    Roles(Part.WEIGHTS, LHS, RHS, OUT, {LHS: "CN", RHS: "ON", OUT: "CO"}),
    Roles(Part.WEIGHTS, RHS, LHS, OUT, {LHS: "ON", RHS: "CN", OUT: "OC"}),  # of a transposed convolution
)
OPERATORS: dict[Part, tuple[Any, ...]] = {
    Part.FORWARD: (spec.ConvTransposeBackpropData,),
    Part.DATA: (spec.ConvolutionBackpropData,),
    Part.WEIGHTS: (spec.ConvolutionBackpropFilters, spec.ConvTransposeBackpropFilters),
}
"""The operators that compute a part. The second one of a part has other orders of the filter's axes."""
