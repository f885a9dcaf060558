"""The model of a CPU has the vectors and registers that the CPU has, by its manual."""

from __future__ import annotations

import re
from math import prod

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tests.support.cpu.cpus import CPUS, Cpu
from tvmconvgrad.machines.targets import parse_target


@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_vectors_and_registers_are_the_targets(cpu: Cpu) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine

    machine = CpuMachine.of(cpu.target)
    assert (machine.lanes, machine.registers) == (cpu.lanes, cpu.registers)


@pytest.mark.parametrize(("target", "takes"), [
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=cooperlake", True),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4 -mattr=+avx512bf16", True),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -mattr=-avx512bf16", False),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids -mtune=znver4", True),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids", False),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4", False),
    ("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3 -mattr=+avx512bf16", False),
    ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-v1", True),
    ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -mattr=+bf16", True),
    ("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n2 -mattr=-bf16", False),
    ("llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76", False),
])  # fmt: skip
def test_which_take_pairs(target: str, takes: bool) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine
    from tvmconvgrad.machines.targets import parse_target

    assert CpuMachine.of(parse_target(target)).takes_pairs() == takes


@pytest.mark.parametrize(("channels", "size", "stride"), [(576, 14, 2), (384, 14, 1), (192, 28, 1)])
def test_depthwise_cache_blocks_span_pages_that_the_core_follows(channels: int, size: int, stride: int) -> None:
    """What a block reads of x and y, in NXC, but for the rows of its border and rows that are too long."""
    from tvmconvgrad import schedules

    out = size // stride
    conv = Convolution(
        16, channels, channels, channels, (size, size), (out, out), (3, 3), (stride, stride), (1, 1), (1, 1), (1, 1)
    )
    problem = Case("ConvolutionBackpropFilters", conv).call.problem()
    blocks = {}
    for cpu in ("sapphirerapids", "znver5"):
        plan = str(schedules.schedule(problem, parse_target(f"llvm -mcpu={cpu}"), "weights-groups"))
        (found,) = re.findall(r"cache_block=\(([\d, ]+)\)", plan)
        blocks[cpu] = prod(map(int, found.split(",")))
    limit = max(32 * 4096 // (4 * channels * (stride**2 + 1)), out)
    assert blocks["sapphirerapids"] <= limit
    assert blocks["sapphirerapids"] < blocks["znver5"]
