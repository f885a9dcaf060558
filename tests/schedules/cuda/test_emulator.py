"""The emulator itself: it must see the faults that tests of schedules rely on it to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.case import OPERATORS, Case
from tests.support.convolution import Convolution
from tests.support.gpu import Emulator, needs_emulator
from tests.support.gpu_cases import check_program, program_of
from tvmconvgrad.compiling.cuda.codegen import Program

pytestmark = needs_emulator
# tiles from several threads, several steps of the loop, a split sum and so workspace
CASE = Case(
    OPERATORS[0], Convolution(3, 1, 24, 40, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), dtype="f16"
)
GIVEN = {"stages": 3, "depth": 32}


def program() -> Program:
    """Two stages are under way, and the third is multiplied."""
    scheduled, found = program_of(CASE, "gemm", GIVEN)
    assert scheduled.decisions["stages"] == 3
    return found


def text(old: str, new: str, count: int = -1) -> Callable[[Program], Program]:
    """A change of the source."""

    def change(program: Program) -> Program:
        assert old in program.source
        return replace(program, source=program.source.replace(old, new, count))

    return change


def less_shared(program: Program) -> Program:
    first, *rest = program.launches
    return replace(program, launches=(replace(first, shared_bytes=first.shared_bytes - 16), *rest))


FAULTS = {
    "no barrier in the loop": text("    __syncthreads();", "", 1),
    "no barrier before the result": text("  __syncthreads();\n  for", "  for"),
    "a wait for one copy less": text("cp.async.wait_group 1;", "cp.async.wait_group 2;"),
    "copies in no group": text("cp.async.commit_group;", "cp.async.commit_group_;"),
    "a matrix that is not transposed": text(".x4.trans.shared", ".x4.shared"),
    "fragments in another order": text("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"),
    "copies of what is outside": text("inside ? 16 : 0", "16"),
    "too little shared memory": less_shared,
    "some lanes of a warp alone": text("    tvmconvgrad_load", "    if (threadIdx.x % 32) tvmconvgrad_load", 1),
}

SEEN = {
    "copies in no group": "not declared",
    "copies of what is outside": "AddressSanitizer|elements differ",
    "too little shared memory": "beyond shared memory",
    "some lanes of a warp alone": "waits for lanes that never come|different instructions|same banks",
}
"""What the emulator says of those whose result is not just wrong."""


def test_what_has_no_fault_passes(emulator: Emulator) -> None:
    check_program(emulator, CASE, program())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(emulator: Emulator, fault: str) -> None:
    broken = FAULTS[fault](program())
    with pytest.raises(AssertionError, match=SEEN.get(fault, "elements differ")):
        check_program(emulator, CASE, broken)


def test_what_lies_beyond_a_tensor_is_not_read(emulator: Emulator) -> None:
    """The address sanitizer has an end for each tensor and each piece of the workspace."""
    packed = replace(CASE, data_format="NCX")
    _, found = program_of(packed, "gemm", GIVEN)
    assert found.workspace_bytes
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        check_program(emulator, packed, replace(found, workspace_bytes=found.workspace_bytes - 256))
