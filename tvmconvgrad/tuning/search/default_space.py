"""MetaSchedule's own space, PostOrderApply, and its own search, on our workers and kept under our rules.

Importing this imports TVM.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.cost_model import XGBModel
from tvm.s_tir.meta_schedule.mutator import Mutator
from tvm.s_tir.meta_schedule.postproc import Postproc
from tvm.s_tir.meta_schedule.schedule_rule import ScheduleRule
from tvm.s_tir.meta_schedule.search_strategy import EvolutionarySearch
from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

from tvmconvgrad.records.choice import DEFAULT_SPACE, Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.schedules import traces
from tvmconvgrad.schedules.default_space import finished, workload
from tvmconvgrad.tuning.search.features import WARM_UP
from tvmconvgrad.tuning.search.metaschedule import ArgInfo, MeasureCandidate, make_context
from tvmconvgrad.tuning.search.space import Candidate, DecisionSpace

_POPULATION = 128  # a quarter of MetaSchedule's: the search then takes as long as building and measuring


class DefaultSpace:
    """What TVM itself would search for a task. The default to beat is ours all the same."""

    name = DEFAULT_SPACE
    instructions = traces.DEFAULT_SPACE

    def __init__(self, task: Task) -> None:
        self.task = task
        self._ours = DecisionSpace(task)

    def workload(self) -> tvm.IRModule:
        """The task's mathematics, not scheduled."""
        return workload(self.task.problem)

    def default(self) -> Candidate:
        """Our own schedule."""
        return self._ours.default()

    def begin(self, target: Any, cores: int, trials: int, batch: int, database: Any) -> Any:
        """A context that searches, from what the database knows."""
        # The rules of plain CPUs: those of particular ones use tensor intrinsics, which take half a minute to import.
        generator = PostOrderApply(
            sch_rules=ScheduleRule.create("llvm"),
            postprocs=Postproc.create("llvm"),
            mutator_probs=Mutator.create("llvm"),
        )
        strategy = EvolutionarySearch(population_size=_POPULATION)
        with_cores = tvm.target.Target({**self.task.target.to_dict(), "num-cores": self.task.threads})
        context = make_context(
            self.workload(), with_cores, space_generator=generator, search_strategy=strategy, num_threads=cores
        )
        model = XGBModel(num_warmup_samples=WARM_UP, num_tuning_cores=cores, verbose_eval=0)
        context.pre_tuning(trials, batch, context.generate_design_space(), database, model)
        self._context, self._model = context, model
        return context

    def learn(self, candidates: list[Any], results: list[Any]) -> None:
        """Tell the search what was measured."""
        self._context.notify_runner_results(candidates, results)
        self._model.update(self._context, candidates, results)

    def knows(self, record: Any) -> bool:
        """Whether a record is of this space: one that was replayed is."""
        return True

    def from_record(self, record: Any) -> Candidate | None:
        """The candidate of a record; None where it cannot be made any more."""
        sch = Schedule(record.workload.mod)
        record.trace.apply_to_schedule(sch, False)
        scheduled = finished(self.task.problem, sch.mod)
        trace = json.dumps(record.as_json()[0])
        measured = MeasureCandidate(sch, ArgInfo.from_prim_func(scheduled.module["main"]))
        return Candidate(Choice.of(DEFAULT_SPACE, {}, str(scheduled), trace), measured)

    def describe(self, sch: Schedule) -> str:
        """A candidate for people."""
        return DEFAULT_SPACE
