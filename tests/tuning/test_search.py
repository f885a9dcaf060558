"""A search from end to end, and what it makes of candidates that fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import tvm
from tvm.s_tir.meta_schedule.database import MemoryDatabase
from tvm.s_tir.meta_schedule.runner import RunnerResult

pytest.importorskip("xgboost")
pytest.importorskip("psutil")

from tests.tuning.entries import make_entry
from tvmconvgrad.layers import select_gradients
from tvmconvgrad.records import logs
from tvmconvgrad.records.choice import ChoiceRefused
from tvmconvgrad.records.entry import parse
from tvmconvgrad.records.task import Task
from tvmconvgrad.schedules.chosen import chosen
from tvmconvgrad.spec.reducing.merging import merged
from tvmconvgrad.tuning.progress import Quiet
from tvmconvgrad.tuning.search import strategy
from tvmconvgrad.tuning.search.annotated import choice_of
from tvmconvgrad.tuning.search.final import gains
from tvmconvgrad.tuning.search.search import Found, Limits, Search
from tvmconvgrad.tuning.search.space import Candidate, DecisionSpace
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.search.trials import Trials
from tvmconvgrad.tuning.session import Budget, Session
from tvmconvgrad.tuning.workers import measure, runner
from tvmconvgrad.tuning.workers.candidates import construction
from tvmconvgrad.tuning.workers.measure import LocalMeasurer
from tvmconvgrad.tuning.workers.pool import Pool, TrialFailed
from tvmconvgrad.workers.worker import Answer


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool("tvmconvgrad.tuning.workers.build_worker", 1) as workers:
        yield workers


def search(task: Task, folder: Path, pool: Pool, trials: int, measurer: LocalMeasurer | None = None) -> Found:
    mine = measurer or LocalMeasurer()
    try:
        with Search(Decisions(task), folder, pool, mine) as under_way:
            return under_way.run(Limits(trials))
    finally:
        mine.close()


def test_what_one_thread_has_made_another_does_not_lose(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads draw the same candidate, and for one of them time is up."""
    space = DecisionSpace(task)
    rule, described, late = space.rules[0], space._describe, [True]

    def describe(rule: str, numbers: Mapping[str, int]) -> Answer:
        if late:
            late.clear()
            answer = described(rule, numbers)
            with monkeypatch.context() as other:
                other.setattr(space, "_describe", fail)
                assert space.make(rule, numbers) is None
            return answer
        return described(rule, numbers)

    def fail(rule: str, numbers: Mapping[str, int]) -> Answer:
        raise TrialFailed("time was up")

    monkeypatch.setattr(space, "_describe", describe)
    made = space.make(rule, {})
    assert made is not None
    assert space.make(rule, {}) is made
    assert space.features(made.measured.sch).size


def test_a_search_measures_what_it_is_asked_for_and_goes_on(task: Task, tmp_path: Path, pool: Pool) -> None:
    found = search(task, tmp_path, pool, 6)
    assert len(found.times) == 6
    assert not found.failures
    assert found.gain >= 1
    assert (found.gain > 1) == (found.winner is not None)
    again = search(task, tmp_path, pool, 8)
    assert again.times[:6] == found.times
    assert len(again.times) == 8


def test_metaschedule_reads_the_trials(task: Task, tmp_path: Path, pool: Pool) -> None:
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    found = search(task, tmp_path, pool, 5)
    database = JSONDatabase(work_dir=str(tmp_path))
    records = database.get_all_tuning_records()
    assert len(records) == len(found.times) == 5
    (best,) = database.get_top_k(database.commit_workload(DecisionSpace(task).workload()), 1)
    assert median(float(each) for each in best.run_secs) in found.times


def test_the_default_is_the_first_candidate(task: Task, tmp_path: Path, pool: Pool) -> None:
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    search(task, tmp_path, pool, 1)
    (record,) = JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    candidate = DecisionSpace(task).from_record(record)
    assert candidate is not None
    assert candidate.choice == DecisionSpace(task).default().choice


class Unreliable(LocalMeasurer):
    """Every third candidate fails, in a way of its own."""

    ways = ("crash", "hang", "nonsense")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def measure(self, library: str, limit: float) -> list[float]:
        self.count += 1
        if self.count % 3:
            return super().measure(library, limit)
        way = self.ways[self.count // 3 % 3]
        self._worker.ask({"do": "measure", "library": f"/nowhere/{way}", "limit": 1.0}, 20.0)
        raise AssertionError("a library that is not there was measured")


def test_a_failed_candidate_costs_a_trial_and_is_no_result(task: Task, tmp_path: Path, pool: Pool) -> None:
    found = search(task, tmp_path, pool, 12, Unreliable())
    assert [time is None for time in found.times] == [False, True, False] * 4  # the default was measured before
    assert len(found.failures) == 4
    again = search(task, tmp_path, pool, 12)
    assert again.times == found.times


def test_a_gain_is_the_median_of_rounds() -> None:
    assert gains([2.0, 2.0, 2.0, 9.0], [1.0, 1.0, 2.0, 1.0]) == (2.0, 2.0)
    assert gains([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])[0] == 0.5


def test_a_build_that_fails_is_told(task: Task, tmp_path: Path, pool: Pool) -> None:
    request = construction(task, DecisionSpace(task).default().measured.sch.mod, tmp_path / "library")
    with pytest.raises(TrialFailed, match=r"decisions: .* draws no nothing"):
        pool.ask({**request, "numbers": {"nothing": 1}}, 60.0)
    assert pool.ask(request, 60.0)
    assert (tmp_path / "library").stat().st_size


def test_candidates_know_their_choice(task: Task) -> None:
    space = DecisionSpace(task)
    found = space.samples(5)
    assert len(found) == 5
    for candidate, child in zip(found, space.mutations(found)):
        assert choice_of(candidate.measured.sch) == candidate.choice
        assert child is not None
        assert child.choice.plan != candidate.choice.plan


def test_a_pool_makes_the_same_candidates(task: Task) -> None:
    alone = DecisionSpace(task)
    with Pool("tvmconvgrad.tuning.workers.build_worker", 3) as workers:
        together = DecisionSpace(task, workers)
        for space in (alone, together):
            space.samples(4)
        parents = alone.samples(4)
        assert together.samples(4) == parents
        assert together.mutations(parents) == alone.mutations(parents)
        assert list(together.neighbours(parents[0])) == list(alone.neighbours(parents[0]))
    for one in parents:
        other = together.make(one.choice.rule, dict(one.choice.decisions))
        assert other is not None
        assert other.open == one.open
        np.testing.assert_array_equal(other.features, one.features)


def test_a_search_goes_on_without_rules_whose_default_cannot_be_made(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of describing them is up, or their worker fails: neither is worth more than a trial."""
    space = Decisions(task)
    assert len(space.rules) > 1
    default, described = space.default(), space._describe

    def describe(rule: str, numbers: Mapping[str, int]) -> Answer:
        if rule != space.rules[0]:
            raise TrialFailed("the worker has ended")
        return described(rule, numbers)

    monkeypatch.setattr(space, "_describe", describe)
    context = space.begin(tvm.target.Target(task.target.to_dict()), 1, 64, 8, MemoryDatabase())
    choices = [choice_of(each.sch) for each in context.generate_measure_candidates()]
    assert choices[0] == default.choice
    assert {choice.rule for choice in choices if choice is not None} == {space.rules[0]}
    assert len(choices) > 1


@pytest.mark.parametrize("described", [0, 4])
def test_a_search_whose_time_is_up_ends_with_the_candidates_that_it_has(task: Task, described: int) -> None:
    with Pool("tvmconvgrad.tuning.workers.build_worker", 2) as workers:
        space = Decisions(task, workers)
        assert len([space.default(), *islice(space.neighbours(space.default()), described)]) == 1 + described
        workers.until = 0.0
        context = space.begin(tvm.target.Target(task.target.to_dict()), 2, 64, 4, MemoryDatabase())
        first = context.generate_measure_candidates()
        space.learn(first, [RunnerResult([1.0], None) for _ in first])
        more = context.generate_measure_candidates() or []
    choices = [choice_of(each.sch) for each in (*first, *more)]
    assert choices[0] == space.default().choice
    assert len(set(choices)) == len(choices)
    assert (len(choices) > 1) == bool(described)


def test_features_are_what_metaschedule_extracts(task: Task) -> None:
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature

    from tvmconvgrad.tuning.search.metaschedule import MeasureCandidate, make_context

    space = DecisionSpace(task)
    default = space.default()
    module = chosen(task.problem, task.target, default.choice).module
    context = make_context(space.workload(), tvm.target.Target(task.target.to_dict()))
    (features,) = PerStoreFeature().extract_from(context, [MeasureCandidate(Schedule(module), [])])
    np.testing.assert_array_equal(space.features(default.measured.sch), features.numpy().astype(np.float32))
    assert len(features.numpy()) > 2


def test_candidates_keep_many_cores_busy(task: Task) -> None:
    [(_, gradient)] = select_gradients(["resnet_50"], only="filters", substring="res4a_branch2b")
    space = DecisionSpace(dataclasses.replace(task, problem=merged(gradient.problem)))
    assert tasks_of(space, space.default()) == 16
    assert min(tasks_of(space, each) for each in space.samples(10)) >= 16


def tasks_of(space: DecisionSpace, candidate: Candidate) -> int:
    return chosen(space.task.problem, space.task.target, candidate.choice).work_items


def test_neighbours_differ_in_one_decision_and_are_all_of_them(task: Task) -> None:
    space = DecisionSpace(task)
    parent = space.default()
    found = list(space.neighbours(parent))
    changes = [each.choice.decisions for each in found]
    assert len(set(changes)) == len(changes) > 8
    assert all(each.choice.plan != parent.choice.plan for each in found)
    for ((name, number),) in changes:
        assert number in parent.open[name]
    assert {name for ((name, _),) in changes} > {"tile"}


def test_a_best_without_new_neighbours_ends_no_search(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its neighbours do not fill of a population is drawn at random."""
    monkeypatch.setattr(strategy, "POPULATION", strategy.MEASURED + strategy.NEAR)
    monkeypatch.setattr(strategy, "GENERATIONS", 0)
    space = Decisions(task)
    near = [space.default(), *space.neighbours(space.default())]
    context = space.begin(tvm.target.Target(task.target.to_dict()), 1, 64, 4, MemoryDatabase())
    space.learn([each.measured for each in near], [RunnerResult([1.0 + i], None) for i in range(len(near))])
    found = [choice_of(each.sch) for each in context.generate_measure_candidates()]
    assert found
    assert not {each.choice for each in near} & set(found)


def test_a_search_begins_with_what_is_known(task: Task) -> None:
    winner = DecisionSpace(task).default().choice
    winner = dataclasses.replace(winner, decisions=(("tile", 1),))
    strange = [dataclasses.replace(winner, rule="nothing"), dataclasses.replace(winner, decisions=(("tile", 10**6),))]
    space = Decisions(task, known=[*strange, winner])
    made = [space.make(rule, {}) for rule in space.rules]
    defaults = [each.choice for each in made if each is not None]
    context = space.begin(tvm.target.Target(task.target.to_dict()), 1, 64, 8, MemoryDatabase())
    first = [choice_of(each.sch) for each in context.generate_measure_candidates()]
    assert first[: len(defaults)] == defaults
    known = first[len(defaults)]
    assert known is not None
    assert known.decisions == winner.decisions
    assert len(first) == 8


def test_a_session_measures_what_the_log_has_in_another_type(task: Task, logs_here: Path) -> None:
    entry = make_entry(task.problem)
    logs.append(logs_here, [entry])
    other = dataclasses.replace(task, problem=dataclasses.replace(task.problem, dtype="bf16"))
    budget = Budget(1 + len(DecisionSpace(other).rules))
    Session([other], logs_here, budget, Quiet(), LocalMeasurer()).run()
    (folder,) = logs.target_folder(logs_here, task.target).glob("trials/*")
    with closing(Trials(folder, Decisions(other))) as trials:
        measured = [each.choice.decisions for each in trials.best(budget.trials)]
    assert len(measured) == budget.trials
    assert tuple(entry.decisions.items()) in measured


@pytest.mark.slow
def test_the_stock_space_is_searched_by_the_same_workers(
    task: Task, tmp_path: Path, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvmconvgrad.compiler.llvm import compile_problem
    from tvmconvgrad.tuning.search.default_space import DefaultSpace
    from tvmconvgrad.tuning.session import make_entry

    for module, limit in ((runner, "BUILD_SECONDS"), (measure, "RUN_SECONDS")):  # a busy machine may take longer
        monkeypatch.setattr(module, limit, 600.0)
    measurer = LocalMeasurer()
    space = DefaultSpace(task)
    with Search(space, tmp_path, pool, measurer) as under_way:
        found = under_way.run(Limits(4))
        assert len(found.times) == 4
        assert not found.failures
        best = under_way._trials.best(1)[0]
    measurer.close()
    assert json.loads(best.choice.trace)
    found.winner, found.gain = best.choice, 1.5  # as if it had won
    choice = parse(make_entry(found).line()).choice
    library, facts = compile_problem(task.problem, task.target, None, choice)
    assert facts["schedule"] == best.choice.plan
    assert library
    with pytest.raises(ChoiceRefused, match="instruction 'TransformLayout'"):
        trace = json.dumps([[["TransformLayout", [], [], []]], []])
        compile_problem(task.problem, task.target, None, dataclasses.replace(best.choice, trace=trace))
