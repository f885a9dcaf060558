"""The model counts the products that a kernel computes: not those of a tap at which a whole tile meets pads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod

import pytest

import tvmconvgrad as cg
from tvmconvgrad.schedules import schedule
from tvmconvgrad.schedules.llvm.positions_sizes import Sizes, Tile
from tvmconvgrad.spec import Problem
from tvmconvgrad.targets import parse_target

WIDTHS = [1, 2, 3, 7, 21, 30]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dilations", [(1, 1), (6, 6), (1, 18), (25, 2)], ids=str)
def test_products_of_a_data_gradient(dilations: tuple[int, int], width: int) -> None:
    problem = _data_gradient((21, 21), dilations)
    geometry = problem.geometry
    pairs = [
        _computed(y, k, width if axis == 1 else 1, lambda i, j, axis=axis: i + dilations[axis] * (1 - j), x)
        for axis, (x, y, k) in enumerate(zip(geometry.x, geometry.y, geometry.k))
    ]
    assert Sizes(problem).products(Tile(width, 16, 1, "channels")) == 2 * 32 * 8 * prod(pairs)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_products_of_a_strided_forward_sum(stride: int, width: int) -> None:
    operator = cg.ConvTransposeBackpropData(
        strides=(stride,), pads_begin=(4,), pads_end=(5,), dilations=(3,), filter_format="XIO"
    )
    problem = operator.problem((2, 40, 8), (4, 32, 8), dtype="f32")
    (x,), (y,), (k,) = problem.geometry.x, problem.geometry.y, problem.geometry.k
    pairs = _computed(x, k, width, lambda i, j: i * stride - 4 + 3 * j, y)
    assert Sizes(problem).products(Tile(width, 16, 1, "channels")) == 2 * 32 * 8 * pairs


def test_small_tiles_compute_less_where_taps_lie_far_apart() -> None:
    sizes = Sizes(_data_gradient((21, 21), (18, 18)))
    assert sizes.products(Tile(3, 16, 1, "channels")) < 0.8 * sizes.products(Tile(7, 16, 1, "channels"))


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("row", [7, 8, 14, 16, 28])
def test_tiles_suit_short_rows(row: int, level: str) -> None:
    """In tiles of 6 positions a row of 8 would be computed as 12."""
    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1), output_shape=(2, row, row, 128)
    )
    problem = operator.problem((2, row, row, 128), (3, 3, 128, 128), dtype="f32")
    made = schedule(problem, parse_target(f"llvm -mcpu={level}"), "positions-channels")
    tile = made.decisions["tile"]["positions"]
    assert 7 * -(-row // tile) * tile <= 8 * row


def _data_gradient(x: tuple[int, int], dilations: tuple[int, int]) -> Problem:
    operator = cg.ConvolutionBackpropData(
        strides=(1, 1), pads_begin=dilations, pads_end=dilations, dilations=dilations, output_shape=(2, *x, 32)
    )
    return operator.problem((2, *x, 8), (3, 3, 32, 8), dtype="f32")


def _computed(positions: int, taps: int, width: int, meets: Callable[[int, int], int], size: int) -> int:
    """Element by element: all of a tile's for each tap at which any of them meets data."""
    tiles = [range(begin, begin + width) for begin in range(0, positions, width)]
    return sum(
        width for tile, tap in itertools.product(tiles, range(taps)) if any(0 <= meets(i, tap) < size for i in tile)
    )
