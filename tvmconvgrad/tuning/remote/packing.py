"""Making a pack: the candidates that a search begins with, built here to be measured elsewhere. Imports TVM."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tvm
from tvm.s_tir.meta_schedule.builder import BuilderInput

from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records import lookup
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.remote.pack import new_pack
from tvmconvgrad.tuning.search.space import Candidate
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.session import builders
from tvmconvgrad.tuning.workers.pool import Pool, TrialFailed
from tvmconvgrad.tuning.workers.runner import Builder
from tvmconvgrad.workers.environment import tvm_version

Progress = Callable[[str, int, int], None]
"""Is told what is under way, how many tasks are done, and how many there are."""


def pack(
    path: Path, target: Target, tasks: Sequence[Task], trials: int, logs: Path, progress: Progress
) -> tuple[int, list[str]]:
    """Write a pack of `trials` candidates a task; returns how many there are in all, and why tasks have none. OSError.

    The candidates are those that a search begins with: the default of each rule, what the `logs` know of the same
    problem, what differs from any of these in one decision, and random ones.
    """
    failures: list[str] = []
    with (
        Pool("tvmconvgrad.tuning.workers.build_worker", builders()) as pool,
        new_pack(path, target, tvm_version()) as writer,
    ):
        for done, task in enumerate(tasks):
            progress(task.title, done, len(tasks))
            try:
                with tempfile.TemporaryDirectory(prefix="tvmconvgrad-pack-") as folder:
                    writer.add(task, _built(task, trials, logs, pool, Path(folder)))
            except TrialFailed as reason:
                failures.append(f"{task.title}: {reason}")
        return writer.candidates, failures


def _built(task: Task, trials: int, logs: Path, pool: Pool, folder: Path) -> list[tuple[Choice, Path]]:
    """A task's candidates with their libraries, but for those that cannot be built; the default must be."""
    space = Decisions(task, pool, known=lookup.similar(task.problem, task.target, logs))
    candidates = _first(space, trials)
    target = tvm.target.Target(task.target.to_dict())
    built = Builder(task, folder, pool).build([BuilderInput(each.measured.sch.mod, target) for each in candidates])
    if built[0].error_msg is not None:
        raise TrialFailed(f"the default cannot be built: {built[0].error_msg}")
    return [
        (candidate.choice, Path(one.artifact_path))
        for candidate, one in zip(candidates, built)
        if one.error_msg is None
    ]


def _first(space: Decisions, trials: int) -> list[Candidate]:
    """At most `trials` candidates with different programs; the default is the first."""
    found: dict[str, Candidate] = {}
    for each in _in_order(space, trials):
        found.setdefault(each.choice.plan, each)
        if len(found) == trials:
            break
    return list(found.values())


def _in_order(space: Decisions, trials: int) -> Iterator[Candidate]:
    starts = space.starts()
    yield from starts
    for start in starts:
        yield from space.neighbours(start)
    yield from space.samples(trials)
