"""The tasks of layers, and what a search has to know of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvmconvgrad.bench.cpus import cpu_name
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.records.task import Task
from tvmconvgrad.runtime.threads import get_num_threads
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced


def make_tasks(problems: Iterable[tuple[str, Problem]], target: Target, threads: int, machine: str) -> list[Task]:
    """The distinct tasks of named problems, in order. Problems without elements or sums have none."""
    names: dict[Problem, list[str]] = {}
    for name, problem in problems:
        if 0 not in (*problem.input_shapes[0], *problem.input_shapes[1], *problem.output_shape):
            names.setdefault(reduced(problem), []).append(name)
    return [Task(problem, target, threads, machine, tuple(of)) for problem, of in names.items()]


def this_machine() -> dict[str, Any]:
    """What a search has to know of this machine: `cpu`, its name; `target` and `threads` by default. JSON's types."""
    return {"cpu": cpu_name(), "target": str(parse_target()), "threads": get_num_threads()}
