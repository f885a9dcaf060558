"""What is tuned: one problem for one target on so many threads, whatever layers it comes from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvmconvgrad.bench.cpus import cpu_name
from tvmconvgrad.choice import VERSION
from tvmconvgrad.compiling import environment
from tvmconvgrad.compiling.entry import canonical
from tvmconvgrad.runtime.threads import get_num_threads
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.targets import Target, parse_target


@dataclass(frozen=True)
class Task:
    """A problem with as few axes as it allows, which is what a kernel is built from."""

    problem: Problem
    target: Target
    threads: int
    """Of a measured call."""
    machine: str
    """Whose times they are: a CPU's name."""
    names: tuple[str, ...] = ()
    """Of the layers."""

    @property
    def key(self) -> str:
        """Names the task's measurements: they mean nothing for another machine, or another version of the schedules."""
        facts = {
            "problem": self.problem.key,
            "target": str(self.target),
            "threads": self.threads,
            "machine": self.machine,
            "tvm": tvm_version(),
            "version": VERSION,
        }
        return hashlib.sha256(canonical(facts)).hexdigest()[:20]

    @property
    def title(self) -> str:
        """For people, on one line."""
        first, *others = self.names or (self.problem.operator,)
        return f"{first} and {len(others)} more" if others else first


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


def tvm_version() -> str:
    """Of the compiler, found without importing it."""
    return environment.versions()["apache-tvm"]
