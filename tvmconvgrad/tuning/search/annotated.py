"""A candidate in MetaSchedule's form: the workload with our choice annotated at its root. Importing this imports TVM.

A trace of our schedules could not be replayed: layouts and loops change with the decisions, and the last rewrites are
no instructions of a trace. So a trace has only the draws by name, and the program is made by scheduling again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tvm
from tvm.s_tir import Schedule

from tvmconvgrad.records.choice import Choice

PREFIX = "tvmconvgrad."


def annotated(workload: tvm.IRModule, choice: Choice, candidates: Mapping[str, Sequence[int]]) -> Schedule:
    """The workload with a choice, whose decisions were drawn from the candidates."""
    sch = Schedule(workload)
    root = sch.get_sblock("root")
    sch.annotate(root, f"{PREFIX}rule", choice.rule)
    sch.annotate(root, f"{PREFIX}plan", choice.plan)
    for name, number in choice.decisions:
        options = list(candidates[name])
        drawn = sch.sample_categorical(options, [1.0 / len(options)] * len(options), options.index(number))
        sch.annotate(root, PREFIX + name, drawn)
    return sch


def choice_of(sch: Schedule) -> Choice | None:
    """The choice annotated in a candidate's schedule, or in one that its trace was replayed on; None: not ours."""
    notes = dict(sch.get(sch.get_sblock("root")).annotations.items())
    ours = {str(name).removeprefix(PREFIX): note for name, note in notes.items() if str(name).startswith(PREFIX)}
    if not {"rule", "plan"} <= set(ours):
        return None
    rule, plan = str(ours.pop("rule")), str(ours.pop("plan"))
    return Choice.of(rule, {name: int(note) for name, note in ours.items()}, plan)
