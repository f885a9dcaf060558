"""The emulator itself: it must see the faults that tests of schedules rely on it to see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import every
from tests.support.gpu.cases import SM_90A, changed, check_program, program_of
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.schedules.cuda.gemm.tiles import WARPGROUP_TILES, GemmTile

pytestmark = needs_emulator
# tiles from several threads, several steps of the loop, a split sum and so workspace
CASE = Case(
    OPERATORS[0], Convolution(3, 1, 24, 40, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), dtype="f16"
)
GROUP_CASE = replace(CASE, convolution=replace(CASE.convolution, o=72))  # columns of more than one line
GIVEN = {"stages": 3, "block_k": 32}
PAD = 16
"""Bytes behind the last row or line in shared memory, which nobody uses."""
SQUARE = WARPGROUP_TILES.index(GemmTile(128, 128, (2, 1)))


def program() -> Program:
    """Two stages are under way, and the third is multiplied."""
    scheduled, found = program_of(CASE, "gemm", GIVEN)
    assert scheduled.plan["stages"] == 3
    return found


def group_program() -> Program:
    """By warpgroups: one stage is under way, one is multiplied and one may still be."""
    scheduled, found = program_of(GROUP_CASE, "gemm", {"stages": 3, "tile": SQUARE, "split_k": 1}, SM_90A)
    assert scheduled.plan["tile"] == [128, 128, 64]
    return found


def less_shared(program: Program) -> Program:
    first, *rest = program.launches
    return replace(program, launches=(replace(first, shared_bytes=first.shared_bytes - PAD - 16), *rest))


FAULTS = {
    "no barrier in the loop": changed("    __syncthreads();", "", 1),
    "no barrier before the result": changed("  __syncthreads();\n  for", "  for"),
    "a wait for one copy less": changed("cp.async.wait_group 1;", "cp.async.wait_group 2;"),
    "copies in no group": changed("cp.async.commit_group;", "cp.async.commit_group_;"),
    "a matrix that is not transposed": changed(".x4.trans.shared", ".x4.shared"),
    "fragments in another order": changed("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"),
    "copies of what is outside": changed("inside ? 16 : 0", "16"),
    "too little shared memory": less_shared,
    "some lanes of a warp alone": changed("    tvmconvgrad_load", "    if (threadIdx.x % 32) tvmconvgrad_load", 1),
}

SEEN = {
    "copies in no group": "not declared",
    "copies of what is outside": "AddressSanitizer|elements differ",
    "too little shared memory": "beyond shared memory",
    "some lanes of a warp alone": "waits for lanes that never come|different instructions|same banks",
}
"""What the emulator says of those whose result is not just wrong."""


GROUP_FAULTS = {
    "copies that tensor cores do not see": changed("fence.proxy.async.shared::cta;", "wgmma.fence.sync.aligned;"),
    "sums that were not handed over": changed("wgmma.fence.sync.aligned;", "fence.proxy.async.shared::cta;"),
    "a wait for products of one step less": changed(
        "wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"
    ),
    "no wait for the last products": changed("  tvmconvgrad_wait_products_0();", ""),
    "products in no group": changed("  tvmconvgrad_commit_products();", ""),
    "no barrier in the loop": changed("    __syncthreads();", "", 1),
    "the other direction": changed("p, 1, 1, 1, 1;", "p, 1, 1, 0, 1;"),
    "another swizzling": changed("mode << 62", "2ull << 62"),
    "another distance of eight lines": changed("lines >> 4 << 32", "lines >> 5 << 32"),
    "another distance along lines": changed("parts >> 4 << 16", "parts >> 5 << 16"),
    "tiles that are not aligned": changed("__align__(1024)", "__align__(128)"),
}
GROUP_SEEN = {
    "copies that tensor cores do not see": "not made visible",
    "sums that were not handed over": "without wgmma.fence",
    "a wait for products of one step less": "not made visible",
    "no barrier in the loop": "not made visible",
    "another swizzling": "beyond shared memory",
}


def test_what_has_no_fault_passes(emulator: Emulator) -> None:
    check_program(emulator, CASE, program())
    check_program(emulator, GROUP_CASE, group_program())


@pytest.mark.parametrize("fault", every(3, list(FAULTS)))
def test_a_fault_is_seen(emulator: Emulator, fault: str) -> None:
    broken = FAULTS[fault](program())
    with pytest.raises(AssertionError, match=SEEN.get(fault, "elements differ")):
        check_program(emulator, CASE, broken)


@pytest.mark.parametrize("fault", every(3, list(GROUP_FAULTS)))
def test_a_fault_of_groups_of_warps_is_seen(emulator: Emulator, fault: str) -> None:
    broken = GROUP_FAULTS[fault](group_program())
    with pytest.raises(AssertionError, match=GROUP_SEEN.get(fault, "elements differ")):
        check_program(emulator, GROUP_CASE, broken)


def test_what_lies_beyond_a_tensor_is_not_read(emulator: Emulator) -> None:
    """The address sanitizer has an end for each tensor and each piece of the workspace."""
    packed = replace(CASE, data_format="NCX")
    _, found = program_of(packed, "gemm", GIVEN)
    assert found.workspace_bytes
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        check_program(emulator, packed, replace(found, workspace_bytes=found.workspace_bytes - 256))
