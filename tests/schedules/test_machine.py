"""The model of a CPU has the vectors and registers that the CPU has, by its manual."""

from __future__ import annotations

import pytest

from tests.support.cpus import CPUS, Cpu


@pytest.mark.parametrize("cpu", CPUS, ids=str)
def test_vectors_and_registers_are_the_targets(cpu: Cpu) -> None:
    import tvm

    from tvmconvgrad.schedules.llvm.machine import Machine

    machine = Machine.of(tvm.target.Target(cpu.target.to_dict()))
    assert (machine.lanes, machine.registers) == (cpu.lanes, cpu.registers)
