"""Results of code for CPUs by name, where this CPU has all that they have: every rule gives what is defined."""

from __future__ import annotations

import pytest

import tvmconvgrad
from tests.support.cases import layouts
from tests.support.cases.convolution import operands
from tests.support.cases.sampling import every
from tests.support.cpu.cpus import CPUS, Build, Cpu, assert_right, builds
from tests.support.oracles import reference
from tvmconvgrad.machines.host import host_architecture, host_features

HERE = [cpu for cpu in CPUS if cpu.architecture == host_architecture()]


def need(cpu: Cpu) -> None:
    from tvmconvgrad.compiler import llvm

    missing = llvm.required_features(cpu.target) - host_features()
    if missing:
        pytest.skip(f"this CPU has no {', '.join(sorted(missing))}")


def check(build: Build, rule: str) -> None:
    case, call = build.case, build.case.call
    operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
    kernel = operator.compile(*call.shapes, dtype=call.dtype, target=build.target, schedule=rule)
    tensors = operands(case.convolution, case.result)
    got = kernel(*case.arrays(tensors))
    exact = reference.gradient(case.convolution, case.result, tensors)
    assert_right(rule, layouts.to_canonical(got, case.axes(case.result)), exact)


@pytest.mark.parametrize("build", every(7, builds(HERE), second=4))
def test_every_rule_gives_the_same(build: Build) -> None:
    need(build.cpu)
    for rule in build.rules:
        check(build, rule)
