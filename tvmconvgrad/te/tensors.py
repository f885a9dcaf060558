"""What the three sums share: the operands in one canonical order, padded with zeros, in f32.

Throughout te/, n is the image, g the group, c and o are channels of a group on the side of x and of y, *x and *y
positions, and *k taps. x and y also stand for their gradients: a convolution relates x, w and y whichever is computed.

A user's tensor comes in one of many layouts and three types. Each sum reads it through one stage that

* puts its axes in the canonical order: (n, g, c, *x), (n, g, o, *y) or (g, *k, c, o);
* pads it with zeros: positions by the convolution's padding, channels and groups to a multiple of the schedule's tile;
* converts it to f32, the type in which all sums are accumulated (bf16 keeps its 16 bits where the CPU multiplies it).

So the sums contain no layouts, no types and no remainders of tiles, and a schedule packs an operand by changing the
storage order of its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


def ceil_to(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Multiples:
    """What a schedule asks of an expression: multiples that extents are rounded up to, and how operands are stored.

    Zeros fill the surplus of operands; the surplus of results is not written to the user's tensor.
    """

    groups: int = 1
    c: int = 1
    o: int = 1
    position: int = 1
    """Positions along the last spatial axis of the result, or, for a filter gradient, of the sum."""
    phases: bool = False
    """Whether a filter gradient stores x phase by phase along a strided last axis, so that vectors are contiguous."""
    direct: bool = False
    """Whether the sum is written in place: it is the f32 result itself, without a stage that converts it."""
    aside: int = 0
    """Not 0 if the sum goes to a scratch accumulator: another pass then writes the result, whose positions along the
    last axis are rounded up to this multiple instead."""
    pairs: bool = False
    """Whether operands are bf16 dot-product pairs: they keep 16 bits, and an instruction adds two products to an
    f32."""
    image_halves: int = 1
    """2 where a filter gradient takes each image as two halves along the first spatial axis. With an odd number of
    rows, both halves share the middle row at weight 1/2: exact for normal bf16, and the CPU's instruction takes smaller
    numbers as zero."""
    implicit_axes: int = 0
    """The number of spatial axes, from the first, with implicit padding: it is not stored, since the schedule leaves
    its products out."""
    blocks: tuple[int, int] = (1, 1)
    """The numbers of channels c and o that a filter gradient packs together: multiples of its tile's."""


@dataclass(frozen=True)
class OutputMap:
    """The index of a stage's element in the user's tensor; it has none unless all of `inside` hold.

    Conditions on positions come first, then those on groups and channels: vectors mostly lie along the latter, so the
    former are tested once for a whole vector.
    """

    inside: list[Index]
    index: list[Index]


@dataclass(frozen=True)
class Sum:
    """A gradient as tensor expressions, with the stages that a schedule works on, by their block names.

    `results` are stages in the user's type. Without `output_maps` the only result is the user's tensor. With them, one
    for each result, the results keep the sum's order of axes, surplus included, and
    schedules/transforms/epilogue.py stores them to the user's tensor.
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
    """The gradient by the bias, if the problem asks for it."""
    output_maps: tuple[Callable[..., OutputMap], ...] = ()

    @property
    def summed(self) -> tuple[Stage, ...]:
        """The results of the sums, one for each."""
        return self.results[len(self.zeros) :]

    @property
    def arguments(self) -> list[Stage]:
        """The parameters of `prim_func`: inputs, then results, then the gradient by the bias."""
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


def group_sizes(geometry: Geometry) -> tuple[int, int]:
    """Channels of one group: (c / g, o / g)."""
    return geometry.c // geometry.groups, geometry.o // geometry.groups


def guarded(
    inside: Sequence[Index], value: Callable[[], Index], multiples: Multiples, halved: Index | None = None
) -> Index:
    """`value` where every condition holds, else zero; in f32, or as the bits of bf16. Where `halved` holds it is
    multiplied by 1/2."""
    dtype = BITS if multiples.pairs else ACCUMULATOR
    taken = tirx.reinterpret(dtype, value()) if multiples.pairs else value().astype(dtype)
    if halved is not None:
        half = _as_f32(taken) * tirx.Select(halved, tirx.const(0.5, ACCUMULATOR), tirx.const(1.0, ACCUMULATOR))
        taken = (tirx.reinterpret("uint32", half) >> tirx.const(16, "uint32")).astype(BITS)
    return tirx.if_then_else(tirx.all(*inside), taken, tirx.const(0, dtype)) if inside else taken


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
    """Positions in the user's tensor: the geometry may be a part that begins further on (spec/cropping.py)."""
    return tuple(at + begin if begin else at for at, begin in zip(space, problem.begins(side)))


def filter_parts(problem: Problem, index: Sequence[Index]) -> tuple[Sequence[Index], Index, Index]:
    """(space, c, o) of an index of a filter that has the geometry's taps in the order of the user's axes."""
    width = {"X": problem.geometry.rank, "C": 1, "O": 1}
    parts: dict[str, Sequence[Index]] = {}
    for axis in problem.filter_axes:
        parts[axis], index = index[: width[axis]], index[width[axis] :]
    return parts["X"], parts["C"][0], parts["O"][0]


def converts(problem: Problem, multiples: Multiples) -> bool:
    """Whether operands have another type than the user's tensors."""
    return problem.dtype != "f32" and not multiples.pairs


def padded_data(
    tensor: Stage,
    problem: Problem,
    side: str,
    name: str,
    channels: int,
    views: Sequence[PaddedView],
    multiples: Multiples,
    multiple: int,
    phases: int = 1,
    apart: int = 0,
    halves: bool = False,
) -> Stage:
    """A data tensor, `side` "x" or "y", as a stage (n, g, channel of the group, *space), padded with zeros.

    A group's `channels` are rounded up to a `multiple`; `views` has one view for each spatial axis. With several
    `phases`, element i of the last axis is stored at (i % phases, i // phases). With two image halves each half takes
    the place of an image: the second one begins `apart` rows behind the first. If they share the middle row, `halves`
    gives it the weight 1/2 in both.
    """
    groups, image_halves = problem.geometry.groups, multiples.image_halves
    if phases > 1:
        views = [*views[:-1], replace(views[-1], extent=ceil_to(views[-1].extent, phases))]
    g_extent, c_extent = ceil_to(groups, multiples.groups), ceil_to(channels, multiple)

    def element(n: Index, g: Index, c: Index, *space: Index) -> Index:
        if phases > 1:
            *outer, phase, run = space
            space = (*outer, run * phases + phase)
        halved = None
        if image_halves > 1:
            halved = space[0] == (1 - n % image_halves) * apart if halves else None
            n, space = n // image_halves, (space[0] + n % image_halves * apart, *space[1:])
        inside = within(g, groups, g_extent) + within(c, channels, c_extent)
        inside += [condition for i, view in zip(space, views) for condition in view.inside(i)]
        where = [view.moved(i) - view.shift for i, view in zip(space, views)]
        place = data_index(problem, side, n, g * channels + c, where)
        return guarded(inside, lambda: tensor(*place), multiples, halved)

    extents = [view.extent for view in views]
    if phases > 1:
        extents[-1:] = [phases, extents[-1] // phases]
    extents[0] -= (image_halves - 1) * apart
    return te.compute((problem.geometry.batch * image_halves, g_extent, c_extent, *extents), element, name=name)


def padded_filter(
    tensor: Stage, problem: Problem, name: str, views: Sequence[PaddedView], multiples: Multiples
) -> Stage:
    """The filter as a stage (g, *k, c of the group, o of the group), padded with zeros; `views` has one for each axis
    of k."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    g_extent = ceil_to(geometry.groups, multiples.groups)
    c_extent, o_extent = ceil_to(c_group, multiples.c), ceil_to(o_group, multiples.o)

    def element(g: Index, *rest: Index) -> Index:
        *space, c, o = rest
        inside = within(g, geometry.groups, g_extent) + within(c, c_group, c_extent)
        inside += within(o, o_group, o_extent)
        inside += [condition for i, view in zip(space, views) for condition in view.inside(i)]
        taps = [view.moved(i) - view.shift for i, view in zip(space, views)]
        where = filter_index(problem, taps, c, g * o_group + o)
        return guarded(inside, lambda: tensor(*where), multiples)

    extents = [view.extent for view in views]
    return te.compute((g_extent, *extents, c_extent, o_extent), element, name=name)


def reduce_axes(extents: Sequence[int], names: Sequence[str]) -> list[tirx.IterVar]:
    """One reduction axis for each extent."""
    return [te.reduce_axis((0, extent), name) for extent, name in zip(extents, names)]


def spatial_names(prefix: str, rank: int) -> list[str]:
    """Names of spatial axes: prefix_d, prefix_h, prefix_w, the last `rank` of them."""
    return [f"{prefix}_{axis}" for axis in "dhw"[3 - rank :]]


def dot(a: Index, b: Index, axes: Sequence[tirx.IterVar], multiples: Multiples) -> Index:
    """The sum of products over the axes, in f32."""
    if multiples.pairs:
        a, b = _as_f32(a), _as_f32(b)
    return te.sum(a * b, axis=list(axes))


def _as_f32(bits: Index) -> Index:
    """The f32 of a bf16 that is given by its bits: they are the upper half of the f32's."""
    return tirx.reinterpret(ACCUMULATOR, bits.astype("uint32") << tirx.const(16, "uint32"))


def result_dtype(problem: Problem) -> str:
    """TVM's name of the result's type, to which sums are rounded once."""
    return DTYPES[problem.output_dtype]


def converted(total: te.Tensor, shape: Sequence[Index], dtype: str, name: str) -> te.Tensor:
    """The elements of a sum within `shape`, converted to `dtype`."""
    return te.compute(shape, lambda *i: total(*i).astype(dtype), name=name)
