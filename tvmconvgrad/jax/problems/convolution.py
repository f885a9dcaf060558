"""A convolution as JAX describes it, `lax.conv_general_dilated`, in plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconvgrad.spec.values import Shape

LHS, RHS, OUT = "lhs", "rhs", "out"


@dataclass(frozen=True)
class Convolution:
    """The shapes, numbers and type of one `lax.conv_general_dilated`, all in JAX's names and order.

    `lhs`, `rhs` and `out` are the shapes as the arrays have them. Of each of the three `specs`, the first two entries
    are the axes of (batch, feature), of (output feature, input feature) and of (batch, feature), the others the spatial
    axes. `padding` has a pair for each spatial axis. `dtype` is "f32", "f16" or "bf16".
    """

    lhs: Shape
    rhs: Shape
    out: Shape
    specs: tuple[Shape, Shape, Shape]
    window_strides: Shape
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: Shape
    rhs_dilation: Shape
    feature_group_count: int
    batch_group_count: int
    dtype: str

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.window_strides)

    def shape(self, tensor: str) -> Shape:
        """The shape of "lhs", "rhs" or "out"."""
        return {LHS: self.lhs, RHS: self.rhs, OUT: self.out}[tensor]

    def spec(self, tensor: str) -> Shape:
        """The axes of a tensor: its first two, in the order above, and the spatial ones."""
        return self.specs[(LHS, RHS, OUT).index(tensor)]

    def spatial(self, tensor: str) -> Shape:
        """The spatial sizes of a tensor."""
        shape = self.shape(tensor)
        return tuple(shape[axis] for axis in self.spec(tensor)[2:])

    def steps(self, tensor: str) -> Shape:
        """What an index of a tensor counts in lhs_dilation * lhs = window_strides * out + rhs_dilation * rhs - pad.

        An axis of one element counts as 1: nothing depends on it.
        """
        given = {LHS: self.lhs_dilation, RHS: self.rhs_dilation, OUT: self.window_strides}[tensor]
        return tuple(1 if size == 1 else step for size, step in zip(self.spatial(tensor), given))
