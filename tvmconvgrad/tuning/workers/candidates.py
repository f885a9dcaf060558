"""What a search asks for a candidate: to describe it, or to build it. Importing this imports TVM."""

from __future__ import annotations

import functools
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.records.task import Task
from tvmconvgrad.schedules.base import Rule
from tvmconvgrad.schedules.chosen import given
from tvmconvgrad.schedules.default_space import finished, workload
from tvmconvgrad.spec import Problem
from tvmconvgrad.tuning.search.annotated import choice_of
from tvmconvgrad.tuning.search.metaschedule import MeasureCandidate, make_context
from tvmconvgrad.tuning.workers.pool import Answer, Request


def description(task: Task, rule: str, numbers: Mapping[str, int]) -> Request:
    """What `describe` is asked for a rule with these numbers."""
    return {"do": "describe", **_about(task), "rule": rule, "numbers": dict(numbers)}


def describe(request: Request) -> Answer:
    """The plan, its work items, what each decision may be given those before it, and the features, for `read_features`.

    Only "refused", and why, where the rule refuses the numbers. The features are MetaSchedule's, per store.
    """
    problem, target = _problem(request["problem"]), parse_target(request["target"])
    try:
        scheduled = given(problem, _rules(target)[request["rule"]], request["numbers"])
    except ValueError as why:
        return {"refused": str(why)}
    candidate = MeasureCandidate(Schedule(scheduled.module), [])
    (features,) = PerStoreFeature().extract_from(_context(problem, target), [candidate])
    return {
        "plan": str(scheduled),
        "work_items": scheduled.work_items,
        "open": {name: list(numbers) for name, numbers in scheduled.candidates.items()},
        "shape": list(features.shape),
        "features": b64encode(features.numpy().astype(np.float32)).decode(),
    }


def construction(task: Task, module: tvm.IRModule, library: Path) -> Request:
    """What `build` is asked for a candidate's module: the workload with our choice annotated in it, or scheduled by
    MetaSchedule."""
    choice = choice_of(Schedule(module))
    if choice is None:
        program: Request = {"module": tvm.ir.save_json(module)}
    else:
        program = {"rule": choice.rule, "numbers": dict(choice.decisions)}
    return {"do": "build", **_about(task), **program, "library": str(library)}


def build(request: Request) -> Answer:
    """Compile and link a program, into the file `library`: for a GPU, into machine code with its launches, as a file of
    the cache has them."""
    problem, target = _problem(request["problem"]), parse_target(request["target"])
    if "module" in request:
        scheduled = finished(problem, tvm.ir.load_json(request["module"]))
    else:
        scheduled = given(problem, _rules(target)[request["rule"]], request["numbers"])
    Path(request["library"]).write_bytes(target.backend.get("compiler").compile_scheduled(scheduled, target))
    return {}


def _about(task: Task) -> Request:
    return {"problem": json.dumps(task.problem.to_dict()), "target": str(task.target)}


def read_features(answer: Answer) -> NDArray[np.float32]:
    """A candidate's features: stores x features."""
    found: NDArray[np.float32] = np.ndarray(answer["shape"], np.float32, b64decode(answer["features"]))
    return found


@functools.lru_cache(maxsize=16)
def _problem(text: str) -> Problem:
    return Problem.from_dict(json.loads(text))


@functools.lru_cache(maxsize=16)
def _rules(target: Target) -> dict[str, Rule]:
    return {rule.name: rule for rule in schedules.rules(target)}


@functools.lru_cache(maxsize=16)
def _context(problem: Problem, target: Target) -> Any:
    return make_context(workload(problem), tvm.target.Target(target.to_dict()))
