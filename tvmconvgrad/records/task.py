"""What is tuned: one problem for one target on so many threads, whatever layers it comes from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tvmconvgrad.cache.entry import canonical
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers.environment import tvm_version


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
