"""The model of a CPU has the vectors and registers that the CPU has, by its manual."""

from __future__ import annotations

import pytest

from tests.support.cpus import CPUS, Cpu


@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_vectors_and_registers_are_the_targets(cpu: Cpu) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine

    machine = CpuMachine.of(cpu.target)
    assert (machine.lanes, machine.registers) == (cpu.lanes, cpu.registers)


@pytest.mark.parametrize(("target", "multiplies"), [
    ("llvm -mcpu=cooperlake", True),
    ("llvm -mcpu=x86-64-v4 -mattr=+avx512bf16", True),
    ("llvm -mcpu=znver4 -mattr=-avx512bf16", False),
    ("llvm -mcpu=x86-64-v4", False),
    ("llvm -mcpu=x86-64-v3 -mattr=+avx512bf16", False),
])  # fmt: skip
def test_which_multiply_pairs(target: str, multiplies: bool) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine
    from tvmconvgrad.machines.targets import parse_target

    parsed = parse_target(f"{target} -mtriple=x86_64-linux-gnu")
    assert CpuMachine.of(parsed).multiplies_pairs == multiplies
