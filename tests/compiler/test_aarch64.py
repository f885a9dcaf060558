"""Kernels for AArch64, linked and run under emulation: every rule equals the definition, on one thread and on two."""

from __future__ import annotations

import pytest

from tests.support import layouts, reference
from tests.support.convolution import operands
from tests.support.cpus import CASES, CPUS, Build, assert_right
from tests.support.emulation import Emulation, needs_emulator
from tests.support.sampling import every

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
    for threads in (1, 2):
        got = emulation.run(build.cpu.name, library, case.arrays(tensors), shapes, threads)
        got = layouts.to_canonical(got.reshape(case.shape(case.result)), case.axes(case.result))
        assert_right(rule, got, expected)


@needs_emulator
@pytest.mark.parametrize("build", every(3, BUILDS))
def test_every_rule_gives_the_same(build: Build, emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CXX", "CC"):  # which may name this machine's
        monkeypatch.delenv(variable, raising=False)
    for rule in build.rules:
        check(build, rule, emulation)
