"""Entries of logs that no search has made."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import Entry
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers.environment import tvm_version

TARGET = parse_target(None)


@functools.cache
def _planned(problem: Problem, target: Target) -> tuple[str, str]:
    """The rule that is chosen, and its program with another tile."""
    from tvmconvgrad.schedules import applicable, schedule

    rule = applicable(problem, target)[0]
    return rule, str(schedule(problem, target, rule, {"tile": 1}))


def make_entry(problem: Problem, target: Target = TARGET, /, **changed: Any) -> Entry:
    """An entry with another tile than the default's."""
    rule, plan = _planned(problem, target)
    entry = Entry(
        json.loads(json.dumps(problem.to_dict())), str(target), tvm_version(), VERSION, rule, {"tile": 1}, plan, "", 1,
        "a CPU", "2026-01-01", 64, False, 1.25, 0.001,
    )  # fmt: skip
    return dataclasses.replace(entry, **changed)
