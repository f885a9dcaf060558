"""Implicit matrix products on an emulated GPU: exact on integers, in every order of threads and copies."""

from __future__ import annotations

import itertools

import pytest

from tests.support.cases.by_rule import cases
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.random_cases import random_cases
from tests.support.cases.sampling import covering, in_turn
from tests.support.gpu.cases import check, check_program, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.schedules.cuda.gemm.tiles import FMA_TILES, TENSOR_TILES

pytestmark = needs_emulator
WIDE = Convolution(2, 1, 40, 72, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
LONG = Convolution(3, 1, 16, 24, (19, 20), (19, 20), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
THREE = ("f32", "f16", "bf16")


def of_all_types() -> list[Case]:
    """The rules' cases, each in the type of its turn: all three appear with all operators."""
    return [case.with_dtype(THREE[i // len(OPERATORS) % 3]) for i, case in enumerate(cases())]


def tiles() -> list[tuple[Case, dict[str, int]]]:
    """Each tile, with every BLOCK_K and stages in turn, for each sum."""
    found = []
    for dtype, count, block_ks in (("f32", len(FMA_TILES), (8, 16)), ("f16", len(TENSOR_TILES), (32, 64))):
        for tile, operator in itertools.product(range(count), (0, 1, 3)):
            turn = len(found)
            filters = ("XIO", "OIX")[turn % 2]
            case = Case(OPERATORS[operator], WIDE, "NXC", filters, dtype)
            found.append((case, {"tile": tile, "block_k": block_ks[turn % 2]}))
    return found


def named(chosen: tuple[Case, dict[str, int]]) -> str:
    return f"{chosen[0]}-{chosen[1]}"


@pytest.mark.parametrize("case", covering(of_all_types()))
def test_results_are_exact(emulator: Emulator, case: Case) -> None:
    if not takes("gemm", case):
        pytest.skip("the sum is no matrix product")
    check(emulator, case, "gemm")


@pytest.mark.parametrize(
    "chosen",
    # each tile of each type, and each operator, once
    covering(tiles(), lambda each: [(each[0].dtype, each[1]["tile"]), each[0].operator], quick=0, second=1, name=named),
)
def test_each_tile(emulator: Emulator, chosen: tuple[Case, dict[str, int]]) -> None:
    case, given = chosen
    stages = program_of(case, "gemm", given)[0].candidates["stages"]
    check(emulator, case, "gemm", {**given, "stages": stages[given["tile"] % len(stages)]})


@pytest.mark.parametrize(("operator", "dtype"), in_turn(2, OPERATORS[:2], ["f32", "bf16"]))
def test_split_sums(emulator: Emulator, operator: str, dtype: str) -> None:
    case = Case(operator, LONG if operator.endswith("Filters") else WIDE, "NXC", "OIX", dtype)
    scheduled, _ = program_of(case, "gemm")
    split_k = max(scheduled.candidates["split_k"])
    assert split_k > 1
    _, program = program_of(case, "gemm", {"split_k": split_k, "in_cluster": 1})
    assert len(program.launches) > len(program_of(case, "gemm", {"split_k": 1})[1].launches)
    check_program(emulator, case, program)


@pytest.mark.parametrize("case", covering(random_cases(seed=11, count=60), quick=0))
def test_random_attributes(emulator: Emulator, case: Case) -> None:
    dtype = THREE[case.convolution.c % 3]
    if not takes("gemm", case):
        pytest.skip("the sum is no matrix product")
    check(emulator, case.with_dtype(dtype), "gemm")


def test_16_bits_go_to_tensor_cores_and_f32_does_not() -> None:
    for dtype in THREE:
        _, program = program_of(Case(OPERATORS[0], WIDE, dtype=dtype), "gemm")
        assert (f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32" in program.source) is (dtype != "f32")
        assert "tf32" not in program.source


def test_a_layout_with_channels_last_is_read_where_it_lies() -> None:
    plain = Convolution(2, 1, 64, 64, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    for operator in OPERATORS:
        _, program = program_of(Case(operator, plain, "NXC", "XIO", "f16"), "gemm", {"split_k": 1})
        assert (len(program.launches), program.workspace_bytes) == (1, 0)
        _, program = program_of(Case(operator, plain, "NCX", "XIO", "f16"), "gemm", {"split_k": 1})
        assert len(program.launches) > 1


def test_indices_have_32_bits_where_tensors_are_small_and_64_where_they_are_not() -> None:
    small = Case(OPERATORS[0], WIDE, dtype="f16")
    assert "int64_t" not in _kernels(program_of(small, "gemm")[1].source)
    huge = Convolution(40000, 1, 64, 64, (32, 32), (32, 32), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    assert "int64_t" in _kernels(program_of(Case(OPERATORS[0], huge, dtype="f16"), "gemm")[1].source)


def _kernels(source: str) -> str:
    return source[source.index("__global__") :]


@pytest.mark.parametrize("dtype", THREE)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_loop_is_one_piece_of_code(operator: str, dtype: str) -> None:
    """Else the compiler could not order copies and their addresses among the products."""
    kernels = _kernels(program_of(Case(operator, WIDE, dtype=dtype), "gemm")[1].source)
    loop = kernels[kernels.index("for (int step") :]
    body = loop[: loop.index("\n  }")]
    assert "tvmconvgrad_copy" in body
    assert "__syncthreads" in body
    assert "if (" not in body


def test_a_number_that_is_no_candidate_is_refused() -> None:
    with pytest.raises(ValueError, match="tile"):
        program_of(Case(OPERATORS[0], WIDE), "gemm", {"tile": 99})
