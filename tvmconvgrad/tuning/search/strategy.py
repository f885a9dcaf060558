"""The search: MetaSchedule's evolution, on decisions instead of traces. Importing this imports TVM.

MetaSchedule's own EvolutionarySearch mutates traces and replays them. Traces of our schedules cannot be replayed:
layouts and loops change with the decisions, and the last rewrites are no instructions of a trace. So the same search
runs here, and makes each candidate by scheduling again.

The first candidates are the default, results of earlier searches, and what differs from the default in one decision.
Then a population is made of the best measured candidates, of neighbours of the very best, and of random ones. In each
generation it is mutated, with parents chosen by the cost model's scores. The best unmeasured candidates are measured,
and a few random ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from statistics import median
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.runner import RunnerResult
from tvm.s_tir.meta_schedule.search_strategy import PySearchStrategy

from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.search.annotated import choice_of
from tvmconvgrad.tuning.search.features import make_model
from tvmconvgrad.tuning.search.metaschedule import make_context
from tvmconvgrad.tuning.search.space import Candidate, DecisionSpace
from tvmconvgrad.tuning.workers.pool import Pool

POPULATION = 24
MEASURED = 8
"""How many of a population are the best that were measured."""
NEAR = 10
"""How many differ from the best one in one decision: most of what is gained comes from a few of those together."""
GENERATIONS = 2
MUTATED = 0.85
RANDOM = 0.15
"""The part of a batch that is chosen without the model."""


class Decisions(DecisionSpace):
    """The space of decisions, with its search, which begins with the default and with what is `known` to be fast."""

    def __init__(self, task: Task, pool: Pool | None = None, seed: int = 0, known: Sequence[Choice] = ()) -> None:
        super().__init__(task, pool, seed)
        self._known = known

    def starts(self) -> list[Candidate]:
        """The default of each rule, the cheapest rule's first, and what is known, as far as they can be made."""
        defaults = [self.make(rule, {}) for rule in self.rules]
        known = [self.make(each.rule, dict(each.decisions)) for each in self._known if each.rule in self.rules]
        return [each for each in (*defaults, *known) if each is not None]

    def begin(self, target: Any, cores: int, trials: int, batch: int, database: Any) -> Any:
        """A context that searches, from what the database knows."""
        strategy, model = Evolution(self), make_model(self.features, cores)
        self._context = make_context(self.workload(), target, search_strategy=strategy, num_threads=cores)
        self._context.pre_tuning(trials, batch, [], database, model)
        return self._context

    def learn(self, candidates: list[Any], results: list[Any]) -> None:
        """Tell the search what was measured."""
        self._context.notify_runner_results(candidates, results)


@derived_object
class Evolution(PySearchStrategy):  # type: ignore[misc]
    """MetaSchedule's evolutionary search over a space of decisions. The default is the first candidate of all."""

    def __init__(self, space: Decisions) -> None:
        super().__init__()
        self._space = space
        self._times: dict[Choice, float] = {}
        self._seen: set[str] = set()

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Any,
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Take up a search from what the database knows."""
        self._left, self._batch, self._model = max_trials, num_trials_per_iter, cost_model
        known = [self._known(record) for record in database.get_all_tuning_records()] if database is not None else []
        pairs = [pair for pair in known if pair is not None]
        if pairs:
            self._model.update(self._context, [each.measured for each, _ in pairs], [result for _, result in pairs])

    def post_tuning(self) -> None:
        """Nothing is left to be done."""

    def generate_measure_candidates(self) -> Any:
        """The next batch; None where the budget or the space is exhausted."""
        count = min(self._batch, self._left)
        if count <= 0:
            return None
        more = self._evolve(count) if self._times else self._near_default(count)
        picks = self._new([*self._space.starts(), *more])[:count]
        self._left -= len(picks)
        self._seen.update(pick.choice.plan for pick in picks)
        return [pick.measured for pick in picks] or None

    def notify_runner_results(self, measure_candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn what was measured."""
        for candidate, result in zip(measure_candidates, results):
            choice = choice_of(candidate.sch)
            assert choice is not None
            self._note(choice, result.run_secs)
        self._model.update(self._context, measure_candidates, results)

    def _known(self, record: Any) -> tuple[Candidate, Any] | None:
        """A candidate of an earlier search with its result; None where its numbers mean something else today."""
        again = self._space.from_record(record)
        if again is None:
            return None
        self._note(again.choice, record.run_secs)
        return again, RunnerResult(record.run_secs, None if record.run_secs else "failed")

    def _note(self, choice: Choice, seconds: Any) -> None:
        self._seen.add(choice.plan)
        if seconds:
            self._times[choice] = median(float(each) for each in seconds)

    def _near_default(self, count: int) -> list[Candidate]:
        """What differs from the default in one decision, and random ones where that is too little."""
        return [*islice(self._space.neighbours(self._space.default()), count), *self._space.samples(count)]

    def _evolve(self, count: int) -> list[Candidate]:
        """The best of some generations by the model's scores, and a few of the random ones that they began with."""
        best = self._best()
        near = (each for parent in best[:1] for each in self._space.neighbours(parent))
        new = (each for each in near if each.choice.plan not in self._seen)
        random = list(islice(new, NEAR))
        random += self._space.samples(POPULATION - len(best) - len(random))
        population = [*best, *random]
        scored: dict[str, tuple[float, Candidate]] = {}
        for generation in range(GENERATIONS + 1):
            scores = self._scores(population)
            scored |= {each.choice.plan: (score, each) for score, each in zip(scores, population)}
            if generation < GENERATIONS:
                population = self._next(population, scores)
        ranked = [each for _, each in sorted(scored.values(), key=lambda pair: -pair[0])]
        ranking, others = self._new(ranked), self._new(random)
        chance = min(round(RANDOM * count), len(others))
        return self._new([*ranking[: count - chance], *others[:chance], *ranking[count - chance :]])[:count]

    def _next(self, population: Sequence[Candidate], scores: Sequence[float]) -> list[Candidate]:
        draws = self._space.random
        weights = scores if max(scores) > 0 else None
        parents = draws.choices(population, weights, k=POPULATION)
        few = round(MUTATED * POPULATION)
        children = self._space.mutations(parents[:few])
        return [child or parent for child, parent in zip(children, parents)] + parents[few:]

    def _scores(self, population: Sequence[Candidate]) -> list[float]:
        found = self._model.predict(self._context, [each.measured for each in population])
        return [max(0.0, float(score)) for score in found]

    def _best(self) -> list[Candidate]:
        """The best that were measured."""
        choices = heapq.nsmallest(MEASURED, self._times, key=lambda choice: self._times[choice])
        found = (self._space.make(choice.rule, dict(choice.decisions)) for choice in choices)
        return [candidate for candidate in found if candidate is not None]

    def _new(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Those that were not measured, each once: of those with the same program, the first."""
        found: dict[str, Candidate] = {}
        for each in candidates:
            if each.choice.plan not in self._seen:
                found.setdefault(each.choice.plan, each)
        return list(found.values())
