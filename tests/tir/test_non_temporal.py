"""Non-temporal stores: where they are generated, by whole vectors, and that each work item's are fenced."""

from __future__ import annotations

import pytest

from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import in_turn
from tests.support.cpu.assembly import count
from tests.support.cpu.cpus import CPUS, Cpu
from tvmconvgrad.compiler import llvm

DENSE, DEPTHWISE = 1, 64
"""Groups."""
LARGE, SMALL = 144, 12
"""Positions along an axis."""
STORE, FENCE = r"^\tv?movnt", r"^\tsfence"
VECTORS = {4: "xmm", 8: "ymm", 16: "zmm"}


def code(cpu: Cpu, groups: int, size: int, dtype: str = "f32") -> list[str]:
    """The assembly of a strided data gradient with 64 channels and `size` x `size` positions of two images."""
    sizes = ((size, size), (size // 2, size // 2), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0))
    case = Case("ConvolutionBackpropData", Convolution(2, groups, 64, 64, *sizes), dtype=dtype)
    built = llvm.build(case.call.problem(), cpu.target)
    return str(built.executable.mod.inspect_source("s")).splitlines()


@pytest.mark.parametrize(("cpu", "groups"), in_turn(2, CPUS, [DENSE, DEPTHWISE]))
def test_large_results_of_cpus_that_have_them(cpu: Cpu, groups: int) -> None:
    lines = code(cpu, groups, LARGE)
    if cpu.architecture != "x86_64":
        assert count(lines, r"\bstnp\b") == 0
        return
    stores = count(lines, STORE)
    if cpu.lanes == 4 and groups == DENSE:
        assert stores == 0  # a tile of narrow vectors has half a line of channels
        return
    assert stores > 0
    assert count(lines, STORE + rf".*%{VECTORS[cpu.lanes]}") == stores
    assert count(lines, FENCE) >= 1


@pytest.mark.parametrize("groups", [DENSE, DEPTHWISE])
def test_small_results_stay_in_the_cache(groups: int) -> None:
    for cpu in CPUS:
        assert count(code(cpu, groups, SMALL), f"{STORE}|{FENCE}") == 0


@pytest.mark.parametrize("size", [98, LARGE])
def test_depthwise_results_by_whole_lines_stay_as_long_as_all_tensors_may(size: int) -> None:
    for cpu in CPUS:
        stays = size < LARGE and cpu.lanes == 16
        assert bool(count(code(cpu, DEPTHWISE, size), STORE)) == (cpu.architecture == "x86_64" and not stays)


@pytest.mark.parametrize("groups", [DENSE, DEPTHWISE])
def test_each_work_item_has_a_fence(groups: int) -> None:
    (cpu,) = (cpu for cpu in CPUS if cpu.name == "x86-64-v4")
    functions = "\n".join(code(cpu, groups, LARGE)).split(",@function")
    storing = [lines for lines in map(str.splitlines, functions) if count(lines, STORE)]
    assert storing
    assert all(count(lines, FENCE) for lines in storing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "groups"), [("x86-64-v3", DEPTHWISE), ("x86-64-v4", DENSE), ("x86-64-v4", DEPTHWISE)])
def test_each_type_has_them(name: str, groups: int, dtype: str) -> None:
    """LLVM may forget that a store is non-temporal: of halves it did so."""
    (cpu,) = (cpu for cpu in CPUS if cpu.name == name)
    assert count(code(cpu, groups, 2 * LARGE, dtype), STORE) > 0
