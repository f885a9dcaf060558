"""Splits of a sum as a cluster of blocks, which add up what lies in each other's shared memory: on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import every, in_turn
from tests.support.gpu.cases import SM_80, SM_90, SM_90A, TF32, changed, check, check_program, program_of
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.tiles import FMA_TILES, TENSOR_TILES, WARPGROUP_TILES

pytestmark = needs_emulator
# 2160 positions: of eight splits by stages of 64 the last one has nothing to add up
LONG = Convolution(24, 1, 64, 72, (10, 10), (9, 10), (2, 1), (1, 1), (1, 1), (0, 0), (0, 0))
STRIDED = Convolution(2, 1, 72, 128, (9, 9), (5, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
GROUPED = Convolution(6, 2, 32, 48, (9, 10), (9, 10), (1, 3), (1, 1), (1, 1), (0, 1), (0, 1))
TARGETS = {"f16 sm_90a": SM_90A, "bf16 sm_90": SM_90, "f32": SM_90, "tf32": TF32}
TILES = {"f16 sm_90a": WARPGROUP_TILES, "bf16 sm_90": TENSOR_TILES, "f32": FMA_TILES, "tf32": TENSOR_TILES}
DTYPES = {"f16 sm_90a": "f16", "bf16 sm_90": "bf16", "f32": "f32", "tf32": "f32"}


def in_cluster(case: Case, target: Target, **given: int) -> Program:
    scheduled, program = program_of(case, "gemm", given, target)
    assert scheduled.plan["in_cluster"] == given["in_cluster"]
    return program


@pytest.mark.parametrize(("what", "sizes"), in_turn(5, list(TARGETS), [(2, 2), (4, 4), (8, 8), (8, 4), (6, 2)]))
def test_results_are_exact(emulator: Emulator, what: str, sizes: tuple[int, int]) -> None:
    """Written as vectors and one by one; from some partial sums, or from none."""
    split_k, count = sizes
    turn = split_k + count + list(TARGETS).index(what)
    case = Case(OPERATORS[0], LONG, "NXC", ("XIO", "OIX")[turn // 2 % 2], DTYPES[what])
    tile = next(i for i, each in enumerate(TILES[what]) if (each.block_m, each.block_n) == (64, 64))
    given = {"tile": tile, "split_k": split_k, "in_cluster": count, "copies": Copies.PAST_L1}
    program = in_cluster(case, TARGETS[what], **given)
    assert f"__cluster_dims__({count}, 1, 1)" in program.source
    assert len(program.launches) == 1 + (split_k > count)
    check(emulator, case, "gemm", given, TARGETS[what])


@pytest.mark.parametrize("way", [Copies.TMA_MULTICAST_B, Copies.TMA_MULTICAST_A])
def test_pairs_that_share_tiles_in_clusters_of_split_k(emulator: Emulator, way: Copies) -> None:
    case = Case(OPERATORS[0], replace(LONG, o=128), dtype="f16")
    given = {"tile": len(WARPGROUP_TILES) - 4, "split_k": 8, "in_cluster": 4, "copies": way}
    assert "__cluster_dims__(8, 1, 1)" in in_cluster(case, SM_90A, **given).source
    check(emulator, case, "gemm", given, SM_90A)


@pytest.mark.parametrize("name", ["phase_groups", "groups", "packed"])
def test_sums_of_several_products_groups_and_packed_tensors(emulator: Emulator, name: str) -> None:
    """The phases of a strided data gradient have sums of different lengths, and one kernel."""
    case = {
        "phase_groups": Case(OPERATORS[1], STRIDED, dtype="f16"),
        "groups": Case(OPERATORS[0], GROUPED, dtype="f16"),
        "packed": Case(OPERATORS[0], replace(LONG, batch=8), "NCX", "OIX", "bf16"),
    }[name]
    check(emulator, case, "gemm", {"split_k": 2, "in_cluster": 2}, SM_90A)


def test_who_has_clusters() -> None:
    case = Case(OPERATORS[0], LONG, dtype="f16")
    for target, some in ((SM_80, False), (SM_90, True), (SM_90A, True)):
        candidates = program_of(case, "gemm", {"split_k": 8}, target)[0].candidates
        assert candidates["in_cluster"] == ((1, 2, 4, 8) if some else (1,))
    pairs = program_of(case, "gemm", {"split_k": 8, "copies": Copies.TMA_MULTICAST_B, "tile": 7}, SM_90A)[0].candidates
    assert pairs["in_cluster"] == (1, 2, 4)


FAULTS = {
    "sums that may not be there yet": (
        changed("  tvmconvgrad_cluster_sync();", "  __syncthreads();", 1),
        "elements differ",
    ),
    "a block that ends too early": (changed("  tvmconvgrad_cluster_sync();\n}", "}"), "has ended"),
    "the sums of another block": (changed("there, %4, %5;", "there, %4, 0;"), "elements differ"),
    "blocks that are no cluster": (changed("__cluster_dims__(4, 1, 1) ", ""), "no such block"),
    "other words": (
        changed("ld.shared::cluster.v4.f32 {%0, %1", "ld.shared::cluster.v4.f32 {%1, %0"),
        "elements differ",
    ),
}


@pytest.mark.parametrize("fault", every(3, list(FAULTS)))
def test_a_fault_is_seen(emulator: Emulator, fault: str) -> None:
    case = Case(OPERATORS[0], LONG, dtype="f16")
    program = in_cluster(case, SM_90A, tile=7, split_k=4, in_cluster=4, copies=Copies.PAST_L1)
    change, words = FAULTS[fault]
    with pytest.raises(AssertionError, match=words):
        check_program(emulator, case, change(program))
