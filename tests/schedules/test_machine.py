"""The model of a CPU has the vectors and registers that the CPU has, by its manual."""

from __future__ import annotations

import pytest

from tests.support.cpu.cpus import CPUS, Cpu


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
