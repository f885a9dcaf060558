"""What is tuned: one problem for one target on a number of threads, whatever layers it comes from."""

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
    """A tuning task: a problem with as few axes as it allows, from which a kernel is built, for a target."""

    problem: Problem
    target: Target
    threads: int
    """The threads of a measured call."""
    machine: str
    """The name of the CPU or GPU on which times are measured."""
    names: tuple[str, ...] = ()
    """The names of the layers that have this problem."""

    @property
    def key(self) -> str:
        """The key of the task's measurements, which hold only for this machine and this version of the schedules."""
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
