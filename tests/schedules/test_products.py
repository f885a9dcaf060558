"""The model counts the products that a kernel computes: not those of a tap at which a whole tile meets pads, nor, where
few copies of a sum suffice, those of a position and a tap that meet pads along the last axis.
There are few more of them than asked for: of summed channels, and of positions of a tile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod

import pytest

import tvmconvgrad as cg
from tests.support.building.scheduled import computed
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import in_turn
from tests.support.oracles import reference
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules import schedule
from tvmconvgrad.schedules.cpu.data.sizes import DataAxis, DataSizes, DataTile
from tvmconvgrad.schedules.cpu.data.sum_axis import SumAxis
from tvmconvgrad.spec import Problem

WIDTHS = [1, 2, 3, 7, 21, 30]
PLACES = {"before": 0, "work_item": 1}
"""Where data is packed, as the decision `packs` has it."""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dilations", [(1, 1), (6, 6), (1, 18), (25, 2)], ids=str)
def test_products_of_a_data_gradient(dilations: tuple[int, int], width: int) -> None:
    problem = _data_gradient((21, 21), dilations)
    geometry, tile = problem.geometry, DataTile(width, 16, 1, DataAxis.N)
    by_position = DataSizes(problem).may_leave_out_by_position(tile)
    pairs = [
        _computed(
            x, k, (1, width)[axis], lambda i, j, axis=axis: i + dilations[axis] * (1 - j), y, axis and by_position
        )
        for axis, (y, x, k) in enumerate(zip(geometry.y, geometry.x, geometry.k))
    ]
    count = SumAxis.computed_by_position if by_position else SumAxis.computed
    assert DataSizes(problem).products(tile, count) == 2 * 32 * 8 * prod(pairs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_products_of_a_strided_forward_sum(stride: int, width: int) -> None:
    operator = cg.ConvTransposeBackpropData(
        strides=(stride,), pads_begin=(4,), pads_end=(5,), dilations=(3,), filter_format="XIO"
    )
    problem = operator.problem((2, 40, 8), (4, 32, 8), dtype="f32")
    (y,), (x,), (k,) = problem.geometry.y, problem.geometry.x, problem.geometry.k
    sizes, tile = DataSizes(problem), DataTile(width, 16, 1, DataAxis.N)
    by_position = sizes.may_leave_out_by_position(tile)
    pairs = _computed(y, k, width, lambda i, j: i * stride - 4 + 3 * j, x, by_position)
    count = SumAxis.computed_by_position if by_position else SumAxis.computed
    assert sizes.products(tile, count) == 2 * 32 * 8 * pairs


def test_small_tiles_compute_less_where_taps_lie_far_apart() -> None:
    sizes = DataSizes(_data_gradient((40, 40), (34, 34)))
    few, many = (DataTile(width, 16, 1, DataAxis.N) for width in (2, 10))
    assert not sizes.may_leave_out_by_position(few) and not sizes.may_leave_out_by_position(many)
    assert sizes.products(few) < 0.9 * sizes.products(many)


@pytest.mark.parametrize(
    ("row", "dilation", "width", "left_out"),
    [(7, 1, 7, True), (14, 1, 7, True), (28, 1, 7, True), (56, 1, 7, False), (21, 9, 7, True), (42, 9, 7, False)],
)
def test_padding_is_left_out_by_position_where_it_pays_with_few_copies(
    row: int, dilation: int, width: int, left_out: bool
) -> None:
    """It is 2 of 168 products in rows of 56; with dilations of 9, tiles of 7 meet padding in four tiles of a row."""
    sizes = DataSizes(_data_gradient((row, row), (dilation, dilation)))
    assert sizes.may_leave_out_by_position(DataTile(width, 16, 1, DataAxis.N)) is left_out
    assert not sizes.may_leave_out_by_position(DataTile(width, 16, 1, DataAxis.M))


def test_copies_that_leave_out_all_padding() -> None:
    """Of 5 taps that lie 4 apart, the outer ones meet padding in the first two of four tiles, and in the last two."""
    assert SumAxis(positions=7, taps=3, begin=-1, stride=1, step=1, size=7).copies(7) == 3
    assert SumAxis(positions=28, taps=3, begin=1, stride=1, step=-1, size=28).copies(7) == 9
    assert SumAxis(positions=28, taps=5, begin=-8, stride=1, step=4, size=28).copies(7) is None
    assert SumAxis(positions=21, taps=5, begin=-8, stride=1, step=4, size=21).copies(7) == 15


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("row", [7, 8, 14, 16, 28])
def test_tiles_suit_short_rows(row: int, level: str) -> None:
    """In tiles of 6 positions a row of 8 would be computed as 12. With AVX2 a row of 7 is computed as 9, in tiles of 3
    x 32: ResNet-50's res5a_branch2b became 1.06 times as fast by them."""
    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1), output_shape=(2, row, row, 128)
    )
    problem = operator.problem((2, row, row, 128), (3, 3, 128, 128), dtype="f32")
    made = schedule(problem, parse_target(f"llvm -mcpu={level}"), "data-channels")
    tile = made.plan["tile"]["positions"]
    assert 7 * -(-row // tile) * tile <= (9 if (row, level) == (7, "x86-64-v3") else 8) * row


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "x86-64-v4 -mattr=+avx512bf16"])
@pytest.mark.parametrize("channels", [8, 13, 17, 20, 24, 40, 56, 100, 144])
def test_summed_channels_are_rounded_up_by_few(channels: int, target: str) -> None:
    """To runs of 16, or of 16 pairs, 24 would be 32 and 40 would be 64."""
    problem = _summing(channels, (8, 9), "bf16")
    for name, place in PLACES.items():
        made = schedule(problem, parse_target(f"llvm -mcpu={target}"), "data-channels", {"packs": place})
        assert made.plan["packs"] == name
        run = made.plan["block_k"]
        assert -(-channels // run) * run <= max(1.08 * channels, channels + 1)


@pytest.mark.parametrize(("channels", "dtype"), in_turn(3, [13, 17, 20, 24, 37, 40, 56], ["f32", "f16", "bf16"]))
def test_runs_of_any_length_sum_all_channels(channels: int, dtype: str) -> None:
    conv = Convolution(2, 1, 16, channels, (7, 9), (7, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    case = Case("ConvolutionBackpropData", conv, "NXC", "XIO", dtype)
    problem, target, tensors = case.call.problem(), parse_target(), operands(conv, case.result)
    expected = reference.gradient(conv, case.result, tensors).astype(DTYPES[dtype])
    for place in PLACES.values():
        made = schedule(problem, target, "data-channels", {"packs": place})
        assert_same(computed(made, case, tensors, target), expected)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_a_prime_number_of_tiles_is_no_work_item_for_each(level: str) -> None:
    """50176 positions are 8363 tiles of 6, and 24 channels are packed by each work item."""
    made = schedule(_summing(24, (50176,), "f32", taps=1), parse_target(f"llvm -mcpu={level}"), "data-channels")
    assert 16 <= made.work_items <= 1000


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_of_groups_have_all_of_their_channels(stride: int, dtype: str) -> None:
    """These lie side by side; tiles of 4 of 8 would write each group's in two parts."""
    operator = cg.ConvolutionBackpropData(
        strides=(stride,) * 2,
        pads_begin=(1, 1),
        pads_end=(1, 1),
        dilations=(1, 1),
        groups=32,
        output_shape=(8, 28, 28, 256),
    )
    y = -(-28 // stride)
    problem = operator.problem((8, y, y, 256), (3, 3, 8, 256), dtype=dtype)
    made = schedule(problem, parse_target("llvm -mcpu=x86-64-v4 -mattr=+avx512bf16"))
    assert made.rule == "data-groups"
    assert made.plan["tile"]["n"] == 8


def _summing(channels: int, positions: tuple[int, ...], dtype: str, taps: int = 3) -> Problem:
    """A data gradient that sums so many channels."""
    rank = len(positions)
    ones, pads = (1,) * rank, (taps // 2,) * rank
    operator = cg.ConvolutionBackpropData(
        strides=ones, pads_begin=pads, pads_end=pads, dilations=ones, output_shape=(1, *positions, 96)
    )
    return operator.problem((1, *positions, channels), (*(taps,) * rank, 96, channels), dtype=dtype)


def _data_gradient(y: tuple[int, int], dilations: tuple[int, int]) -> Problem:
    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), pads_begin=dilations, pads_end=dilations, dilations=dilations, output_shape=(2, *y, 32)
    )
    return operator.problem((2, *y, 8), (3, 3, 32, 8), dtype="f32")


def _computed(
    positions: int, taps: int, width: int, meets: Callable[[int, int], int], size: int, by_position: bool = False
) -> int:
    """Element by element: all of a tile's for each tap at which one meets data; `by_position`, those that do."""
    tiles = [range(begin, begin + width) for begin in range(0, positions, width)]
    meeting = [[0 <= meets(i, tap) < size for i in tile] for tile, tap in itertools.product(tiles, range(taps))]
    return sum(sum(each) if by_position else width * any(each) for each in meeting)
