"""A log as a database of MetaSchedule's, for its own tools. Importing this imports TVM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm.s_tir.meta_schedule.database import TuningRecord, Workload

from tvmconvgrad.files.new_file import write_text
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records.entry import Entry
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec import Problem
from tvmconvgrad.tuning.search.space import DecisionSpace
from tvmconvgrad.tuning.search.trials import RECORDS, WORKLOADS


def write_database(folder: Path, entries: Sequence[Entry]) -> int:
    """Write the two files of a JSONDatabase; how many entries have a record. OSError.

    Entries with a choice that does not apply any more have none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    workloads: list[str] = []
    records: list[str] = []
    for entry in entries:
        target = parse_target(entry.target)
        space = DecisionSpace(Task(Problem.from_dict(entry.problem), target, entry.threads, entry.cpu))
        if entry.rule not in (None, *space.rules):
            continue
        candidate = space.make(entry.rule, entry.decisions) if entry.rule else space.default()
        if candidate is None or entry.plan not in ("", candidate.choice.plan):
            continue
        workload = Workload(space.workload())
        tvm_target, measured = tvm.target.Target(target.to_dict()), candidate.measured
        record = TuningRecord(measured.sch.trace, workload, [entry.seconds], tvm_target, measured.args_info)
        records.append(json.dumps([len(workloads), record.as_json()]))
        workloads.append(json.dumps(workload.as_json()))
    for name, lines in ((WORKLOADS, workloads), (RECORDS, records)):
        write_text(folder / name, "".join(f"{line}\n" for line in lines))
    return len(records)
