"""Running a scheduled program that is no kernel of the package's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Array, Tensors
from tvmconvgrad.compiler import pipeline
from tvmconvgrad.compiler.llvm import compile_problem, compile_scheduled
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.runtime.native import load_function
from tvmconvgrad.schedules import Scheduled, schedule
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced


def run(scheduled: Scheduled, inputs: Sequence[Any], target: Target) -> Any:
    """The result of a program on arrays of its shapes, through TVM's own runtime."""
    built = tvm.compile(scheduled.module, target=tvm.target.Target(target.to_dict()), tir_pipeline=pipeline.NAME)
    *_, out = scheduled.module["main"].params
    result = np.empty([int(extent) for extent in out.shape], str(scheduled.expression.results[0].dtype))
    built.jit()["main"](*inputs, result)
    return result


def computed(scheduled: Scheduled, case: Case, tensors: Tensors, target: Target) -> Array:
    """The result of a program for a case, in canonical layout; it holds NaN before."""
    result = np.full(case.shape(case.result), np.nan, DTYPES[case.dtype])
    first, second = map(np.ascontiguousarray, case.arrays(tensors))
    function = load_function(compile_scheduled(scheduled, target), case.call.problem())
    function(first.ctypes.data, second.ctypes.data, result.ctypes.data)
    return layouts.to_canonical(result, case.axes(case.result))


def kernel(problem: Problem, target: Target, rule: str, given: Mapping[str, int]) -> cg.Kernel:
    """The kernel of a rule with the given numbers, which is not kept on disk."""
    same = reduced(problem)
    choice = Choice.of(rule, given, str(schedule(same, target, rule, given)))
    library, facts = compile_problem(same, target, rule, choice)
    function = load_function(library, same)
    return cg.Kernel(problem, target, facts["schedule"], facts["workspace_bytes"], function)
