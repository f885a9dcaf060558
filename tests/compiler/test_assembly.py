"""Code for CPUs by name, also for those that are not here: every rule builds, with the CPU's vectors and registers."""

from __future__ import annotations

import re

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import every
from tests.support.cpu.assembly import count, saves, simple_loops
from tests.support.cpu.cpus import CPUS, Build, Cpu, builds

# Too few channels for full vectors of them, where the chosen rule puts them into lanes.
NARROW = {"few channels' data"}
# The stores to the stack, for each multiplication in a kernel's loops, that are let pass, by the number of registers.
# LLVM spills one or the other value of a tile that just fits, and in the loop before a condition's end it saves what
# the condition may have left out. Tiles twice as large as fit are above.
SPILLS = {16: 0.5, 32: 0.25}
# The share of a kernel's instructions that multiply. Where results are transformed and written, fewer do.
LEAST_MULTIPLIES = 0.15


def check_sums_stay_in_registers(code: str, cpu: Cpu) -> None:
    loops = [loop for loop in simple_loops(code) if count(loop, cpu.multiplies) > LEAST_MULTIPLIES * len(loop)]
    assert sum(map(saves, loops)) <= SPILLS[cpu.registers] * sum(count(loop, cpu.multiplies) for loop in loops)


@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_each_rule_is_forced_below(cpu: Cpu) -> None:
    from tvmconvgrad import schedules

    cases = builds([cpu])
    assert {rule for build in cases for rule in build.rules} | {"zero"} == set(schedules.names(cases[0].target))


@pytest.mark.parametrize("build", every(11, builds(CPUS), second=6))
def test_every_rule_uses_the_cpu_and_no_more(build: Build) -> None:
    from tvmconvgrad.compiler import llvm

    cpu = build.cpu
    for rule in build.rules:
        code = llvm.build(build.problem, build.target, rule).executable.mod.inspect_source("s")
        assert cpu.lacks is None or not re.search(cpu.lacks, code, re.MULTILINE)
        if rule == build.rules[0] and build.name not in NARROW:
            assert re.search(cpu.multiplies, code)
        check_sums_stay_in_registers(code, cpu)


@pytest.mark.parametrize(("mcpu", "fits"), [("x86-64-v3", True), ("sandybridge", False), ("x86-64-v4", False)])
def test_sums_that_leave_room_for_one_vector_of_channels(mcpu: str, fits: bool) -> None:
    """3 x 4 vectors of sums, with three positions' operands, take all registers of AVX2, and none of them goes to the
    stack. Without FMA3 products take a register, too; AVX-512 has more."""
    from tvmconvgrad import schedules
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.targets import parse_target

    conv = Convolution(1, 1, 32, 64, (32, 33), (32, 33), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    problem = Case("ConvolutionBackpropData", conv).call.problem()
    target = parse_target(f"llvm -mcpu={mcpu} -mtriple=x86_64-linux-gnu")
    tile = schedules.schedule(problem, target, "data-channels").plan["tile"]
    assert ((tile["positions"], tile["n"]) == (3, 32)) == fits
    if fits:
        code = llvm.build(problem, target, "data-channels").assembly()
        sums = max(simple_loops(code), key=lambda loop: count(loop, r"vfmadd\d+ps\s.*%ymm"))
        assert count(sums, r"vfmadd\d+ps\s.*%ymm") >= 12 and not saves(sums)
