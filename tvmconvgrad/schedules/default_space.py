"""Programs of MetaSchedule's default space, PostOrderApply, made by replaying a trace on the unscheduled expression."""

from __future__ import annotations

import hashlib
import json

import tvm
from tvm.s_tir import Schedule, Trace
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from tvmconvgrad.records.choice import DEFAULT_SPACE
from tvmconvgrad.schedules import traces
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Expression


def workload(problem: Problem) -> tvm.IRModule:
    """The unscheduled program of a problem."""
    return tvm.IRModule({"main": express(problem).prim_func()})


def finished(problem: Problem, module: tvm.IRModule) -> Scheduled:
    """A scheduled workload as a program on the user's tensors."""
    expression: Expression = express(problem)
    module = apply_output_maps(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), expression, problem)
    digest = hashlib.sha256(module.script().encode()).hexdigest()[:16]
    return Scheduled(expression, module, DEFAULT_SPACE, {"program": int(digest, 16)})


def replayed(problem: Problem, trace: str) -> Scheduled:
    """The program of a trace that is given as JSON. Raises ValueError if it cannot be replayed."""
    try:
        content = json.loads(trace)
        traces.check(content, traces.DEFAULT_SPACE)
        sch = Schedule(workload(problem))
        Trace.apply_json_to_schedule(content, sch)
        return finished(problem, sch.mod)
    except (RuntimeError, TypeError, RecursionError, AttributeError) as reason:  # as TVM puts it
        raise ValueError(f"trace: cannot be replayed: {str(reason).strip().splitlines()[-1]}") from None
