"""Rounds of shuffles that transpose, on vectors of labels: as the matrices that they hold say."""

from __future__ import annotations

import pytest

from tvmconvgrad.tir.passes import shuffles

Label = tuple[int, int]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("side", [2, 4, 8, 16])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_matrices_side_by_side_are_transposed(side: int, matrices: int, bits: int) -> None:
    lanes = matrices * side
    vectors = [[(row, lane) for lane in range(lanes)] for row in range(side)]
    rounds = []

    def shuffle(one: list[Label], other: list[Label], taken: list[int]) -> list[Label]:
        rounds.append(taken)
        return [(one + other)[lane] for lane in taken]

    got = shuffles.transposed(vectors, lanes, bits, shuffle)
    assert got == [[(lane % side, lane // side * side + row) for lane in range(lanes)] for row in range(side)]
    assert len(rounds) == side * (side.bit_length() - 1)


def test_two_f32_registers_are_interleaved_by_halves_as_unpcklps_and_unpckhps_do() -> None:
    taken: list[list[int]] = []

    def shuffle(one: str, other: str, lanes: list[int]) -> str:
        taken.append(lanes)
        return one

    shuffles.transposed(["a", "b", "c", "d"], 8, 32, shuffle)
    assert taken[:2] == [[0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]]
    assert taken[4:6] == [[0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]]


def test_interleaved() -> None:
    assert shuffles.interleaved(4) == [[0, 4, 1, 5], [2, 6, 3, 7]]


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_strided_elements_are_loaded_and_none_behind_them(count: int, stride: int) -> None:
    begins, taken = shuffles.strided(count, stride)
    loaded = [begin + lane for begin in begins for lane in range(count)]
    assert [loaded[lane] for lane in taken] == list(range(0, count * stride, stride))
    assert (min(loaded), max(loaded)) == (0, (count - 1) * stride)
