"""What the three sums share: the operands in one canonical order, extended by zeros, in f32.

A user's tensor comes in one of many layouts and three types. Each sum reads it through one stage that

* gives it the canonical order of axes: (n, g, c, *y), (n, g, o, *x) and (g, *k, c, o);
* extends it by zeros: in space by the pads, in channels and groups to a multiple of the schedule's tile;
* converts it to f32, in which all sums are taken.

The sums then know neither layouts nor types nor tails, and a schedule packs by changing the stage's storage order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import ir, te, tirx

from tvmconvgrad.spec import Geometry, Problem

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ACCUMULATOR = "float32"

Index = ir.Expr
Stage = te.Tensor


def ceil_to(value: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Multiples:
    """What the schedule's tile wants the extents to be multiples of: zeros (or unused results) fill the rest."""

    groups: int = 1
    c: int = 1
    o: int = 1
    position: int = 1
    """Output positions along the last spatial axis, in the sums that have them."""


@dataclass(frozen=True)
class Sum:
    """A gradient as tensor expressions, with the stages that a schedule works on, by their block names."""

    arguments: tuple[Stage, Stage, Stage]
    operands: tuple[str, str]
    sums: tuple[str, ...]
    result: str

    def prim_func(self) -> tirx.PrimFunc:
        """The function `main(first, second, result)`; 64-bit indices, since a tensor may exceed 2**31 elements."""
        return te.create_prim_func(list(self.arguments), index_dtype_override="int64")


def placeholders(problem: Problem) -> tuple[Stage, Stage]:
    """The operator's two inputs, in the user's layout and type."""
    names = (name.rstrip("_") for name in problem.input_names)
    dtype = DTYPES[problem.dtype]
    first, second = (te.placeholder(shape, dtype, name) for shape, name in zip(problem.input_shapes, names))
    return first, second


def group_sizes(geometry: Geometry) -> tuple[int, int]:
    """Channels of one group: (c / g, o / g)."""
    return geometry.c // geometry.groups, geometry.o // geometry.groups


def _guarded(inside: Sequence[Index], value: Callable[[], Index]) -> Index:
    """`value` where every condition holds, else zero, in f32."""
    conditions = [c for c in inside if not (isinstance(c, bool) and c)]
    taken = value().astype(ACCUMULATOR)
    if not conditions:
        return taken
    return tirx.if_then_else(tirx.all(*conditions), taken, tirx.const(0, ACCUMULATOR))


def _within(index: Index, extent: int, stage_extent: int, shift: int = 0) -> list[Index]:
    """The conditions for shift <= index < shift + extent that 0 <= index < stage_extent leaves open."""
    below = [index >= shift] if shift > 0 else []
    above = [index < shift + extent] if shift + extent < stage_extent else []
    return below + above


def data_index(data_format: str, n: Index, channel: Index, space: Sequence[Index]) -> tuple[Index, ...]:
    """The user's index of an element of a data tensor."""
    return (n, *space, channel) if data_format == "NXC" else (n, channel, *space)


def split_data_index(data_format: str, index: Sequence[Index]) -> tuple[Index, Index, list[Index]]:
    """(n, channel, space) of a user's index of a data tensor."""
    n, *rest = index
    return (n, rest[-1], rest[:-1]) if data_format == "NXC" else (n, rest[0], rest[1:])


def filter_index(axes: str, space: Sequence[Index], c: Index, o: Index) -> tuple[Index, ...]:
    """The user's index of an element of a filter."""
    parts: dict[str, tuple[Index, ...]] = {"X": tuple(space), "C": (c,), "O": (o,)}
    return tuple(index for axis in axes for index in parts[axis])


def extended_data(
    tensor: Stage,
    problem: Problem,
    name: str,
    channels: int,
    sizes: Sequence[int],
    shifts: Sequence[int],
    extents: Sequence[int],
    multiples: tuple[int, int],
) -> Stage:
    """A data tensor as (n, g, channel of the group, *space), extended by zeros.

    `channels` is the group's; `sizes` are the tensor's spatial sizes, `extents` the stage's. Element `i` of the stage
    is element `i - shift` of the tensor along each spatial axis; a negative shift cuts the beginning off.
    `multiples` round groups and channels up.
    """
    groups = problem.geometry.groups
    g_extent, c_extent = ceil_to(groups, multiples[0]), ceil_to(channels, multiples[1])

    def element(n: Index, g: Index, c: Index, *space: Index) -> Index:
        inside = _within(g, groups, g_extent) + _within(c, channels, c_extent)
        for i, size, extent, shift in zip(space, sizes, extents, shifts):
            inside += _within(i, size, extent, shift)
        where = [i - shift for i, shift in zip(space, shifts)]
        return _guarded(inside, lambda: tensor(*data_index(problem.data_format, n, g * channels + c, where)))

    return te.compute((problem.geometry.batch, g_extent, c_extent, *extents), element, name=name)


def extended_filter(tensor: Stage, problem: Problem, name: str, multiples: Multiples) -> Stage:
    """The filter as (g, *k, c of the group, o of the group), extended by zeros in groups and channels."""
    geometry = problem.geometry
    c_group, o_group = group_sizes(geometry)
    g_extent = ceil_to(geometry.groups, multiples.groups)
    c_extent, o_extent = ceil_to(c_group, multiples.c), ceil_to(o_group, multiples.o)

    def element(g: Index, *rest: Index) -> Index:
        *space, c, o = rest
        inside = _within(g, geometry.groups, g_extent) + _within(c, c_group, c_extent)
        inside += _within(o, o_group, o_extent)
        where = filter_index(problem.filter_axes, space, c, g * o_group + o)
        return _guarded(inside, lambda: tensor(*where))

    return te.compute((g_extent, *geometry.k, c_extent, o_extent), element, name=name)


def reduce_axes(extents: Sequence[int], names: Sequence[str]) -> list[tirx.IterVar]:
    """One reduction axis for each extent."""
    return [te.reduce_axis((0, extent), name) for extent, name in zip(extents, names)]


def spatial_names(prefix: str, rank: int) -> list[str]:
    """Names of spatial axes: prefix_d, prefix_h, prefix_w, the last `rank` of them."""
    return [f"{prefix}_{axis}" for axis in "dhw"[3 - rank :]]


def dot(a: Index, b: Index, axes: Sequence[tirx.IterVar]) -> Index:
    """The sum of products over the axes."""
    return te.sum(a * b, axis=list(axes))


def result_dtype(problem: Problem) -> str:
    """TVM's name of the result's type; the sums are rounded to it once."""
    return DTYPES[problem.dtype]


