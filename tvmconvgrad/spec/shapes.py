"""From the shapes of a call to the geometry of a convolution: all checks, in the order a user would look.

In Geometry's letters the filter has axes C and O. The specification calls them I and O for Convolution, but
O and I for ConvTranspose.
"""

from __future__ import annotations

from typing import Protocol

from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.layouts import Argument
from tvmconvgrad.spec.misfits import kernel_misfit, output_padding_misfit, x_misfit, y_misfit
from tvmconvgrad.spec.pads import PadAxis
from tvmconvgrad.spec.values import S64_MAX, Shape


class Operator(Protocol):
    """What a geometry depends on of an operator: its attributes, and how the caller spells names."""

    @property
    def transposed(self) -> bool:
        """Whether the forward operator is ConvTranspose."""

    @property
    def groups(self) -> int:
        """The attribute."""

    @property
    def strides(self) -> Shape:
        """The attribute."""

    @property
    def dilations(self) -> Shape:
        """The attribute."""

    def spelled(self, name: str) -> str:
        """The caller's spelling of a name."""

    def axes(self, kernel: Shape) -> list[PadAxis]:
        """The spatial axes, with the kernel's sizes."""


def filter_geometry(op: Operator, x: Argument, y: Argument, filter_: Argument) -> Geometry:
    """Resolve a weights gradient: both sides and the filter's shape are given."""
    first, second = (y, x) if op.transposed else (x, y)
    _check_batch(second, first)
    _check_groups(op, first)
    _check_groups(op, second)
    _check_whole_channels(op, filter_, y)
    _check_split_channels(op, filter_, x)
    axes = _axes(op, filter_)
    for i, (axis, x_size, y_size) in enumerate(zip(axes, x.spatial, y.spatial, strict=True)):
        if op.transposed:
            _raise(x, i, x_misfit(axis, y_size, x_size, y.name, transposed=True))
        else:
            _raise(filter_, i, kernel_misfit(axis, x_size, x.name))
            _raise(y, i, y_misfit(axis, y_size, x_size, x.name))
    return _geometry(op, axes, x["N"], x["C"], y["C"], x.spatial, y.spatial)


def data_geometry(op: Operator, y: Argument, filter_: Argument, x: Argument | None) -> Geometry:
    """Resolve a Convolution's data gradient; without `x`, infer its shape."""
    _check_groups(op, y)
    _check_whole_channels(op, filter_, y)
    channels = filter_["I"] * op.groups
    if x is not None:
        _check_batch(x, y)
        if x["C"] != channels:
            product = f"{filter_['I']}*{op.groups}, the input channels of {filter_.name} times groups"
            raise x.misfit("C", f"expected {channels} = {product}")
    axes = _axes(op, filter_)
    for i, (axis, y_size) in enumerate(zip(axes, y.spatial, strict=True)):
        if y_size == 0 and axis.output_padding is None and not axis.same:
            raise y.misfit("X", "expected at least 1: without output_padding every Convolution has some output", i)
        if x is not None:
            _raise(x, i, x_misfit(axis, y_size, x.spatial[i], y.name, transposed=False))
    sizes = tuple(_inferred(op, axis, y, i) for i, axis in enumerate(axes)) if x is None else x.spatial
    return _geometry(op, axes, y["N"], channels, y["C"], sizes, y.spatial)


def forward_geometry(op: Operator, x: Argument, filter_: Argument) -> Geometry:
    """Resolve a ConvTranspose's data gradient, which infers the shape of y."""
    _check_groups(op, x)
    if filter_["I"] % op.groups:
        raise filter_.misfit("I", f"expected a multiple of groups {op.groups}")
    _check_split_channels(op, filter_, x)
    axes = _axes(op, filter_)
    for i, (axis, size) in enumerate(zip(axes, x.spatial, strict=True)):
        if axis.output_padding is None:
            _raise(filter_, i, kernel_misfit(axis, size, x.name))
        _raise(x, i, output_padding_misfit(axis, size))
    sizes = tuple(axis.y_of(size) for axis, size in zip(axes, x.spatial, strict=True))
    return _geometry(op, axes, x["N"], x["C"], filter_["I"], x.spatial, sizes)


def _axes(op: Operator, filter_: Argument) -> list[PadAxis]:
    """Return the spatial axes, having checked that the kernel is not empty."""
    for i, size in enumerate(filter_.spatial):
        if size == 0:
            raise filter_.misfit("X", "expected at least 1", i)
    return op.axes(filter_.spatial)


def _raise(argument: Argument, spatial_axis: int, misfit: str | None) -> None:
    if misfit is not None:
        raise argument.misfit("X", misfit, spatial_axis)


def _check_batch(argument: Argument, other: Argument) -> None:
    if argument["N"] != other["N"]:
        raise argument.misfit("N", f"expected {other['N']} as in {other.name}")


def _check_groups(op: Operator, data: Argument) -> None:
    if data["C"] % op.groups:
        raise data.misfit("C", f"expected a multiple of groups {op.groups}")


def _check_whole_channels(op: Operator, filter_: Argument, y: Argument) -> None:
    """Check the filter's axis O, which groups do not split, against y's channels."""
    letter = "I" if op.transposed else "O"
    if filter_[letter] != y["C"]:
        raise filter_.misfit(letter, f"expected {y['C']}, the channels of {y.name}")


def _check_split_channels(op: Operator, filter_: Argument, x: Argument) -> None:
    """Check the filter's axis C, which holds one group's channels, against x's channels."""
    letter = "O" if op.transposed else "I"
    if filter_[letter] * op.groups != x["C"]:
        expected = f"{x['C'] // op.groups} = {x['C']}/{op.groups}"
        raise filter_.misfit(letter, f"expected {expected}, the channels of {x.name} over groups")


def _inferred(op: Operator, axis: PadAxis, y: Argument, i: int) -> int:
    """The one size of x that goes with y; ValueError where there is none, or are several."""
    shape = op.spelled("output_shape")
    if axis.same and axis.stride == 1:
        return y.spatial[i]
    if axis.same:
        least, most = axis.stride * (y.spatial[i] - 1) + 1, axis.stride * y.spatial[i]
        several = f"sizes {max(0, least)} to {most} of spatial axis {i} fit strides {axis.stride}"
        reason = f"required with auto_pad {axis.auto_pad}, since {several}"
        raise ValueError(f"{shape}: missing; {reason}; give it as attribute or as third input")
    size = axis.transposed_x(y.spatial[i], axis.explicit)
    if size < 0:
        begin, end = axis.explicit
        raise y.misfit("X", f"for which {shape} cannot be inferred: it would be {size} with pads {begin} and {end}", i)
    return size


def _geometry(op: Operator, axes: list[PadAxis], n: int, c: int, o: int, x: Shape, y: Shape) -> Geometry:
    pads = [axis.pads(y_size, x_size) for axis, y_size, x_size in zip(axes, y, x, strict=True)]
    for axis, (begin, end), x_size in zip(axes, pads, x, strict=True):
        # kernels index the padded x in s64
        if max(begin + x_size + end, axis.extent) > S64_MAX:
            window = f"kernel {axis.kernel}, dilations {axis.dilation}, strides {axis.stride}"
            raise ValueError(f"pads_begin {begin}, pads_end {end}, {window}: the padded size exceeds 2**63 - 1")
    return Geometry(
        batch=n,
        groups=op.groups,
        c=c,
        o=o,
        x=x,
        y=y,
        k=tuple(axis.kernel for axis in axes),
        strides=op.strides,
        dilations=op.dilations,
        pads_begin=tuple(begin for begin, _ in pads),
        pads_end=tuple(end for _, end in pads),
    )
