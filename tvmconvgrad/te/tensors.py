"""What the three sums share: their axes, their products, and where an element lies in the user's tensors.

Throughout te/, n is the image, g the group, c and o are channels of a group on the side of x and of y, p is a position
of y, and k a tap. Among a stage's axes, *x, *y and *p are positions (*p those of y that a sum goes over), and *k taps,
each with one axis for every spatial one. x and y also stand for their gradients: a convolution relates x, w and y
whichever is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import te, tirx

from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.te.views import Index as Index
from tvmconvgrad.te.views import PaddedView

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ACCUMULATOR = "float32"
BITS = "uint16"
"""The type of operands that keep their 16 bits: TVM would convert any stage of bf16 to f32."""

Stage: TypeAlias = te.Tensor

Im2col: TypeAlias = Callable[[Index, Index, Index, Sequence[Index], Sequence[Index]], Index]
"""x as its taps read it: of (n, g, c, p, k) the element x[n, g, c, p * stride - pads_begin + k * dilation], or zero
where that lies outside of x. It is not a tensor: what is stored of x, and where, is up to whoever supplies this."""


def ceil_to(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class OutputMap:
    """The index of a stage's element in the user's tensor; it has none unless all of `inside` hold.

    Conditions on positions come first, then those on groups and channels: vectors mostly lie along the latter, so the
    former are tested once for a whole vector.
    """

    inside: list[Index]
    index: list[Index]


@dataclass(frozen=True)
class Expression:
    """A gradient as tensor expressions, with the stages that a schedule works on, by their block names.

    `results` are stages in the user's type. Without `output_maps` the only result is the user's tensor. With them, one
    for each result, the results keep the sum's order of axes, surplus included, and a later rewrite stores them to the
    user's tensor.
    """

    inputs: tuple[Stage, Stage]
    results: tuple[Stage, ...]
    operands: tuple[str, ...]
    """The stages that are multiplied: first the data, which all sums share, then one stage for each sum."""
    sums: tuple[str, ...]
    views: Sequence[PaddedView] = ()
    """For each spatial axis, the padded view through which the first operand reads the user's tensor."""
    zeros: tuple[str, ...] = ()
    """The names of the first results: stages of zeros, for elements of the user's tensor that have no products."""
    bias: tuple[Stage, ...] = ()
    """The bias gradient, if the problem asks for it."""
    output_maps: tuple[Callable[..., OutputMap], ...] = ()

    @property
    def sum_results(self) -> tuple[Stage, ...]:
        """The results of the sums, one for each."""
        return self.results[len(self.zeros) :]

    @property
    def arguments(self) -> list[Stage]:
        """The parameters of `prim_func`: inputs, then results, then the bias gradient."""
        return [*self.inputs, *self.results, *self.bias]

    def prim_func(self) -> tirx.PrimFunc:
        """The function of all arguments; 64-bit indices, since a tensor may exceed 2**31 elements."""
        return te.create_prim_func(self.arguments, index_dtype_override="int64")


def placeholders(problem: Problem) -> tuple[Stage, Stage]:
    """The operator's two inputs, in the user's layout and type."""
    names = (name.rstrip("_") for name in problem.input_names)
    dtype = DTYPES[problem.dtype]
    first, second = (te.placeholder(shape, dtype, name) for shape, name in zip(problem.input_shapes, names))
    return first, second


def extents_of(stage: Stage) -> list[int]:
    """A stage's extents."""
    return [int(extent) for extent in stage.shape]


def group_sizes(geometry: Geometry) -> tuple[int, int]:
    """Channels of one group: (c / g, o / g)."""
    return geometry.c // geometry.groups, geometry.o // geometry.groups


def within(index: Index, extent: int, stage_extent: int) -> list[Index]:
    """The condition index < extent, as a list; empty if 0 <= index < stage_extent implies it."""
    return [index < extent] if extent < stage_extent else []


def in_group(channel: Index, size: int, groups: int) -> tuple[Index, Index]:
    """(group, channel of the group) of a channel, where groups have `size` channels."""
    return (tirx.const(0, "int64"), channel) if groups == 1 else (channel // size, channel % size)


def data_index(problem: Problem, side: str, n: Index, channel: Index, space: Sequence[Index]) -> tuple[Index, ...]:
    """The index in the user's data tensor, "x" or "y", of the geometry's element at `space`; `channel` is of all
    groups."""
    space = _in_whole(problem, side, space)
    return (n, *space, channel) if problem.data_format == "NXC" else (n, channel, *space)


def filter_index(problem: Problem, space: Sequence[Index], c: Index, o: Index) -> tuple[Index, ...]:
    """The index in the user's filter of the geometry's tap `space`; `c` is of a group, `o` of all groups."""
    if problem.flips_filter:
        space = [size - 1 - tap for size, tap in zip(problem.geometry.k, space)]
    space = _in_whole(problem, "k", space)
    parts: dict[str, tuple[Index, ...]] = {"X": space, "C": (c,), "O": (o,)}
    return tuple(index for axis in problem.filter_axes for index in parts[axis])


def _in_whole(problem: Problem, side: str, space: Sequence[Index]) -> tuple[Index, ...]:
    """Positions in the user's tensor: the geometry may be a part that begins further on (spec/reducing/cropping.py)."""
    return tuple(at + begin if begin else at for at, begin in zip(space, problem.begins(side)))


def filter_parts(problem: Problem, index: Sequence[Index]) -> tuple[Sequence[Index], Index, Index]:
    """(space, c, o) of an index of a filter that has the geometry's taps in the order of the user's axes."""
    width = {"X": problem.geometry.rank, "C": 1, "O": 1}
    parts: dict[str, Sequence[Index]] = {}
    for axis in problem.filter_axes:
        parts[axis], index = index[: width[axis]], index[width[axis] :]
    return parts["X"], parts["C"][0], parts["O"][0]


def reduce_axes(extents: Sequence[int], names: Sequence[str]) -> list[tirx.IterVar]:
    """One reduction axis for each extent."""
    return [te.reduce_axis((0, extent), name) for extent, name in zip(extents, names)]


def spatial_names(prefix: str, rank: int) -> list[str]:
    """Names of spatial axes: prefix_d, prefix_h, prefix_w, the last `rank` of them."""
    return [f"{prefix}_{axis}" for axis in "dhw"[3 - rank :]]


def dot(a: Index, b: Index, axes: Sequence[tirx.IterVar]) -> Index:
    """The sum of products over the axes, in f32; of operands in f32, or of bf16 by its `BITS`."""
    if str(a.ty) == BITS:
        a, b = as_f32(a), as_f32(b)
    return te.sum(a * b, axis=list(axes))


def as_f32(bits: Index) -> Index:
    """The f32 of a bf16 that is given by its bits: they are the upper half of the f32's."""
    return tirx.reinterpret(ACCUMULATOR, bits.astype("uint32") << tirx.const(16, "uint32"))


def result_dtype(problem: Problem) -> str:
    """TVM's name of the result's type, to which sums are rounded once."""
    return DTYPES[problem.output_dtype]


def converted(total: te.Tensor, shape: Sequence[Index], dtype: str, name: str) -> te.Tensor:
    """The elements of a sum within `shape`, converted to `dtype`."""
    return te.compute(shape, lambda *i: total(*i).astype(dtype), name=name)
