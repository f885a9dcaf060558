"""Cases on GPUs: their programs, and what the emulator makes of them compared with the tests' own reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tests.support.cases import layouts
from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import operands
from tests.support.gpu.emulator import ORDERS, Emulator
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.compiler.cuda.codegen import Program, generate
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.schedules import Scheduled
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing.cropping import cropped

SM_80, SM_90 = parse_target("cuda -arch=sm_80"), parse_target("cuda -arch=sm_90")
SM_90A = parse_target("cuda -arch=sm_90a")
TF32 = parse_target("cuda -arch=sm_90 -fpmath_mode=tf32")


def problem_of(case: Case) -> Problem:
    """The problem that a kernel of the case computes, without compiling anything."""
    import tvmconvgrad

    call = case.call
    operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
    problem: Problem = operator.problem(*call.shapes, call.shape_input, call.dtype)
    return cropped(problem)


def takes(rule: str, case: Case, target: Target = SM_90) -> bool:
    """Whether a rule takes a case."""
    return rule in schedules.applicable(problem_of(case), target)


def program_of(
    case: Case, rule: str | None = None, given: Mapping[str, int] | None = None, target: Target = SM_90
) -> tuple[Scheduled, Program]:
    """The case's program, and its CUDA C++."""
    scheduled = schedules.schedule(problem_of(case), target, rule, given)
    return scheduled, generate(scheduled.module, target)


def changed(old: str, new: str, count: int = -1) -> Callable[[Program], Program]:
    """A change of a program's source."""

    def change(program: Program) -> Program:
        assert old in program.source
        return replace(program, source=program.source.replace(old, new, count))

    return change


def loop_of(program: Program) -> str:
    """The body of the loop over a sum's steps."""
    loop = program.source[program.source.index("for (int step") :]
    return loop[: loop.index("\n  }")]


def check_program(emulator: Emulator, case: Case, program: Program, orders: Sequence[str] = ORDERS) -> None:
    """Demand the exact result in every order of threads."""
    tensors = operands(case.convolution, case.result)
    expected = reference.gradient(case.convolution, case.result, tensors)
    for got in emulator.run(program, case.arrays(tensors), case.shape(case.result), orders):
        want = expected.astype(got.dtype)
        canonical = layouts.to_canonical(got, case.axes(case.result))
        assert_same(canonical.astype(np.float32), want.astype(np.float32))


def check(
    emulator: Emulator, case: Case, rule: str, given: Mapping[str, int] | None = None, target: Target = SM_90
) -> None:
    """Demand that a rule's program computes a case exactly: forward and backward, with late copies and early ones, of
    whose combinations each case has two."""
    scheduled, program = program_of(case, rule, given, target)
    assert scheduled.rule == rule
    turn = sum(map(ord, str(case))) % 2
    check_program(emulator, case, program, (ORDERS[turn * 2], ORDERS[3 - turn * 2]))
