"""Axes that become one: literal cases, and that the memory of the tensors stays the same."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

import tvmconvgrad as cg
from tvmconvgrad.spec import Geometry, Problem
from tvmconvgrad.spec.reducing.merging import merged


def problem(data_format: str, size: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any) -> Problem:
    """A weights gradient of batch 2 with 3 and 4 channels, in XOI and with stride 1 unless said otherwise."""
    rank = len(size)
    strides = attributes.get("strides", (1,) * rank)
    small = [(x - k) // s + 1 for x, k, s in zip(size, kernel, strides)]
    nxc = data_format == "NXC"
    shapes = [(2, *y, c) if nxc else (2, c, *y) for y, c in ((size, 3), (small, 4))]
    filter_format = attributes.get("filter_format", "XOI")
    sizes = {"X": kernel, "I": (3,), "O": (4,)}
    op = cg.ConvolutionBackpropFilters(
        strides=strides,
        dilations=(1,) * rank,
        pads_begin=(0,) * rank,
        pads_end=(0,) * rank,
        data_format=data_format,
        filter_format=filter_format,
        filter_shape=[number for axis in filter_format for number in sizes[axis]],
    )
    return op.problem(*shapes)


def check_same_memory(before: Problem, after: Problem) -> None:
    """The tensors have as many elements, and the sums as many products."""
    assert [prod(shape) for shape in after.input_shapes] == [prod(shape) for shape in before.input_shapes]
    assert prod(after.output_shape) == prod(before.output_shape)
    assert after.flops == before.flops


@pytest.mark.parametrize(
    ("data_format", "size", "kernel", "batch", "y", "taps"),
    [
        ("NXC", (5, 6), (1, 1), 1, (60,), (1,)),
        ("NCX", (5, 6), (1, 1), 2, (30,), (1,)),
        ("NXC", (7,), (1,), 1, (14,), (1,)),
        ("NCX", (7,), (1,), 2, (7,), (1,)),
        ("NXC", (5, 6), (1, 3), 10, (4,), (3,)),
        ("NCX", (5, 6), (1, 3), 2, (5, 4), (1, 3)),
        ("NXC", (5, 6), (3, 1), 2, (3, 6), (3, 1)),
        ("NXC", (4, 5, 6), (3, 1, 1), 2, (2, 30), (3, 1)),
        ("NCX", (4, 5, 6), (1, 1, 3), 2, (20, 4), (1, 3)),
        ("NXC", (4, 5, 6), (1, 1, 3), 40, (4,), (3,)),
    ],
)
def test_axes_along_which_no_tap_moves_join(
    data_format: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    batch: int,
    y: tuple[int, ...],
    taps: tuple[int, ...],
) -> None:
    before = problem(data_format, size, kernel)
    after = merged(before)
    assert (after.geometry.batch, after.geometry.y, after.geometry.k) == (batch, y, taps)
    check_same_memory(before, after)


@pytest.mark.parametrize(
    ("data_format", "size", "kernel", "batch", "x", "taps", "strides"),
    [
        ("NXC", (4, 4), (4, 4), 1, (32,), (16,), (16,)),
        ("NCX", (4, 4), (4, 4), 2, (16,), (16,), (4,)),
        ("NXC", (5, 3), (2, 3), 2, (15,), (6,), (3,)),
        ("NXC", (3, 5), (3, 2), 1, (6, 5), (3, 2), (3, 1)),
        ("NXC", (5, 3, 2), (2, 3, 2), 2, (30,), (12,), (6,)),
        ("NXC", (1, 1), (1, 1), 1, (2,), (1,), (1,)),
        ("NXC", (1, 5), (1, 2), 2, (5,), (2,), (1,)),
        ("NCX", (5, 3), (2, 2), 2, (5, 3), (2, 2), (1, 1)),
    ],
)
def test_axes_that_the_filter_covers_join_the_one_before(
    data_format: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    batch: int,
    x: tuple[int, ...],
    taps: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    before = problem(data_format, size, kernel)
    after = merged(before)
    geometry = after.geometry
    assert (geometry.batch, geometry.x, geometry.k, geometry.strides) == (batch, x, taps, strides)
    check_same_memory(before, after)


@pytest.mark.parametrize(
    ("data_format", "filter_format", "is_product"),
    [
        ("NXC", "XIO", True),
        ("NXC", "OXI", True),
        ("NCX", "OIX", True),
        ("NXC", "OIX", False),
        ("NCX", "XIO", False),
        ("NXC", "XOI", False),
        ("NCX", "IOX", False),
    ],
)
def test_a_filter_as_large_as_the_images_has_channels_alone(
    data_format: str, filter_format: str, is_product: bool
) -> None:
    before = problem(data_format, (5, 2), (5, 2), filter_format=filter_format)
    after = merged(before)
    found = (after.geometry.c, after.geometry.y, after.geometry.k, after.data_format)
    assert (found == (30, (2,), (1,), "NXC")) == is_product
    check_same_memory(before, after)


def test_an_axis_with_a_stride_stays() -> None:
    before = problem("NXC", (6, 6), (1, 1), strides=(2, 1))
    assert merged(before).geometry.y == (3, 6)
    assert merged(problem("NXC", (6, 6), (1, 1), strides=(1, 2))).geometry.y == (3,)


@pytest.mark.parametrize(
    ("data_format", "size", "kernel", "batch", "y", "taps"),
    [
        ("NXC", (5, 6), (3, 1), 2, (18,), (3,)),
        ("NCX", (5, 6), (3, 1), 2, (18,), (3,)),
        ("NXC", (4, 5, 6), (3, 1, 1), 2, (60,), (3,)),
        ("NXC", (4, 5, 6), (3, 1, 3), 2, (10, 4), (3, 3)),
        ("NXC", (4, 5, 6), (1, 3, 1), 8, (18,), (3,)),
        ("NXC", (5, 6), (1, 3), 10, (4,), (3,)),
        ("NXC", (5, 6), (3, 6), 2, (3,), (18,)),
    ],
)
def test_an_axis_joins_one_along_which_taps_move_if_asked(
    data_format: str, size: tuple[int, ...], kernel: tuple[int, ...], batch: int, y: tuple[int, ...], taps: Any
) -> None:
    before = problem(data_format, size, kernel)
    after = merged(before, along_taps=True)
    assert (after.geometry.batch, after.geometry.y, after.geometry.k) == (batch, y, taps)
    check_same_memory(before, after)


def test_taps_move_by_whole_rows_of_the_axis_behind() -> None:
    """Literal numbers: 7 taps, 2 apart, with pads of 6 and 5 rows of 17 elements; none moves along the rows."""
    geometry = Geometry(2, 1, 3, 4, (19, 17), (18, 17), (7, 1), (1, 1), (2, 1), (6, 0), (5, 0))
    after = merged(replace(problem("NCX", (19, 17), (7, 1)), geometry=geometry), along_taps=True).geometry
    assert (after.x, after.y, after.k, after.strides) == ((323,), (306,), (7,), (1,))
    assert (after.dilations, after.pads_begin, after.pads_end) == ((34,), (102,), (85,))


def test_a_strided_axis_joins_none_behind_it() -> None:
    before = problem("NXC", (6, 6), (2, 1), strides=(2, 1))
    assert merged(before, along_taps=True).geometry.y == (3, 6)


def test_sizes_of_images_share_a_kernel() -> None:
    assert merged(problem("NXC", (4, 6), (1, 1))).key == merged(problem("NXC", (3, 8), (1, 1))).key
