"""Kernels for AArch64, linked and run under emulation: every rule equals the definition, on one thread and on two, and
for CPUs with SVE at each length of its vectors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution, operands
from tests.support.cases.sampling import every
from tests.support.cpu.cpus import CASES, CPUS, Build, assert_right
from tests.support.cpu.emulation import Emulation, needs_emulator
from tests.support.oracles import reference
from tvmconvgrad.machines.targets import parse_target

ARM = [cpu for cpu in CPUS if cpu.architecture == "aarch64"]
BUILDS = [Build(ARM[number % len(ARM)], name) for number, name in enumerate(CASES)]


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    return Emulation.prepare(tmp_path_factory.mktemp("emulation"))


def check(build: Build, rule: str, emulation: Emulation) -> None:
    from tvmconvgrad.compiler import llvm

    case, problem = build.case, build.problem
    library, facts = llvm.compile_problem(problem, build.target, rule)
    assert facts["schedule"].startswith(rule)
    tensors = operands(case.convolution, case.result)
    shapes = (*problem.input_shapes, problem.output_shape)
    expected = reference.gradient(case.convolution, case.result, tensors)
    for threads, cpu in product((1, 2), build.cpu.emulated):
        got = emulation.run(cpu, library, case.arrays(tensors), shapes, threads)
        got = layouts.to_canonical(got.reshape(case.shape(case.result)), case.axes(case.result))
        assert_right(rule, got, expected)


@needs_emulator
@pytest.mark.parametrize("build", every(4, BUILDS))
def test_every_rule_gives_the_same(build: Build, emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CXX", "CC"):  # which may name this machine's
        monkeypatch.delenv(variable, raising=False)
    for rule in build.rules:
        check(build, rule, emulation)


@needs_emulator
@pytest.mark.parametrize("target", ["llvm -mcpu=neoverse-n1", "llvm -mcpu=neoverse-v1"])
def test_sums_of_f16_are_f32(target: str, emulation: Emulation) -> None:
    """The CPUs multiply and add f16 themselves, too: 2049 ones would be 2048, since f16 has no 2049. In f32 they are
    2049, and with another one 2050, which f16 has."""
    from tvmconvgrad.compiler import llvm

    conv = Convolution(1, 1, 8, 2050, (3, 4), (3, 4), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    case = Case("ConvolutionBackpropData", conv, dtype="f16")
    problem = case.call.problem()
    library, _ = llvm.compile_problem(problem, parse_target(target))
    ones = [np.ones(shape, np.float16) for shape in problem.input_shapes]
    got = emulation.run("max", library, ones, (*problem.input_shapes, problem.output_shape), 1)
    assert (got == 2050).all()
