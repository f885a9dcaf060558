"""What a search chooses from: the schedules of a problem with their decisions open. Importing this imports TVM.

A candidate is a rule with numbers for its decisions. What a number may be depends on those drawn before it, and layouts
and loops depend on all of them, so a candidate is described by scheduling it; what a rule refuses is no candidate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.s_tir import Schedule

from tvmconvgrad import schedules
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.schedules import traces
from tvmconvgrad.schedules.default_space import workload
from tvmconvgrad.tuning.search.annotated import annotated, choice_of
from tvmconvgrad.tuning.search.metaschedule import ArgInfo, MeasureCandidate
from tvmconvgrad.tuning.workers import candidates
from tvmconvgrad.tuning.workers.pool import Answer, Pool, TimeIsUp, TrialFailed

Item = TypeVar("Item")
Result = TypeVar("Result")
_Key = tuple[str, tuple[tuple[str, int], ...]]

_SECONDS = 60.0  # to describe a candidate
_TRIES = 40
_KEPT = 1024  # descriptions that are kept in memory
_WORK_ITEMS = 16
"""The least number of parallel work items of a candidate, unless the default has fewer. A few large work items may be
the fastest on the threads of a search, but would leave the cores of another machine idle."""

_HOPELESS = 8.0  # times the cheapest rule's cost
_CHEAPEST = 0.6
"""The probability that a random candidate is of the cheapest rule; each further rule takes the same share of the
rest."""

_CHANGED = 0.5
"""The probability that a decision of a random candidate is drawn at random, and is not the rule's default."""


@dataclass(frozen=True)
class Candidate:
    """A program for a task, with the choice that makes it."""

    choice: Choice
    measured: Any = field(repr=False, compare=False)
    """MetaSchedule's MeasureCandidate."""
    open: Mapping[str, Sequence[int]] = field(default_factory=dict, repr=False, compare=False)
    """For each decision its candidates, given the decisions before it."""
    features: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)
    """The input of MetaSchedule's cost model, (stores, features); None: the model extracts it itself."""


class DecisionSpace:
    """The candidates of a task; those with the same program are one. The workers of `pool`, if given, describe them."""

    name = "decisions"
    instructions = traces.OURS

    def __init__(self, task: Task, pool: Pool | None = None, seed: int = 0) -> None:
        self.task = task
        self.rules = _promising(task)
        self.random = Random(seed)
        self._pool = pool
        self._workload = workload(task.problem)
        self._arguments = ArgInfo.from_prim_func(self._workload["main"])
        self._made: OrderedDict[_Key, Candidate] = OrderedDict()
        self._refused: set[_Key] = set()
        self._least_work_items = min(_WORK_ITEMS, self._describe(self.rules[0], {})["work_items"])

    def workload(self) -> tvm.IRModule:
        """The task's mathematics, not scheduled: what MetaSchedule calls the workload."""
        return self._workload

    def default(self) -> Candidate:
        """What the cheapest rule does without a search. TrialFailed where no worker can tell."""
        found = self.make(self.rules[0], {})
        if found is None and self._pool is not None and self._pool.over:
            raise TimeIsUp("time was up before the search began")
        if found is None:
            raise TrialFailed("the default cannot be scheduled")
        return found

    def make(self, rule: str, numbers: Mapping[str, int]) -> Candidate | None:
        """The candidate with these numbers, the rule's own where there are none; None where the rule refuses them.

        Threads may make candidates at the same time.
        """
        key = (rule, tuple(sorted(numbers.items())))
        found = self._made.get(key)
        if found is None and key not in self._refused:
            found = self._described(rule, numbers)
        if found is None:  # also for want of time, while another thread has made it
            self._refused.add(key)
            return None
        self._made.pop(key, None)  # the latest to be asked for goes last
        self._made[key] = found
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return found

    def _described(self, rule: str, numbers: Mapping[str, int]) -> Candidate | None:
        try:
            answer = self._describe(rule, numbers)
        except TrialFailed:
            return None
        if "refused" in answer or (numbers and answer["work_items"] < self._least_work_items):
            return None
        choice = Choice.of(rule, numbers, answer["plan"])
        measured = MeasureCandidate(annotated(self._workload, choice, answer["open"]), self._arguments)
        return Candidate(choice, measured, answer["open"], candidates.read_features(answer))

    def _describe(self, rule: str, numbers: Mapping[str, int]) -> Answer:
        request = candidates.description(self.task, rule, numbers)
        return candidates.describe(request) if self._pool is None else self._pool.ask(request, _SECONDS)

    def features(self, sch: Schedule) -> NDArray[np.float32]:
        """What the cost model sees of a candidate."""
        choice = choice_of(sch)
        assert choice is not None
        found = self.make(choice.rule, dict(choice.decisions))
        assert found is not None
        assert found.features is not None
        return found.features

    def knows(self, record: Any) -> bool:
        """Whether a record names a rule and its numbers."""
        return _choice(record) is not None

    def from_record(self, record: Any) -> Candidate | None:
        """The candidate of a record; None where its numbers mean something else today."""
        choice = _choice(record)
        if choice is None or choice.rule not in self.rules:
            return None
        found = self.make(choice.rule, dict(choice.decisions))
        return found if found is not None and found.choice == choice else None

    def describe(self, sch: Schedule) -> str:
        """A candidate for people."""
        return getattr(choice_of(sch), "plan", "")

    def samples(self, count: int) -> list[Candidate]:
        """Random candidates of random rules, mostly of the cheapest; fewer where many draws are refused."""
        return [found for found in self._all(self._sample, self._draws(count)) if found is not None]

    def mutations(self, parents: Sequence[Candidate]) -> list[Candidate | None]:
        """For each, a candidate that differs in one decision; those that depend on it follow the rule if they must."""
        return self._all(lambda pair: self._mutation(*pair), list(zip(parents, self._draws(len(parents)))))

    def neighbours(self, parent: Candidate) -> Iterator[Candidate]:
        """All candidates that differ in one decision, in random order; they are made as they are asked for."""
        changes = self._changes(parent)
        drawn = self.random.sample(changes, len(changes))
        at_once = self._pool.size if self._pool else 1
        for first in range(0, len(drawn), at_once):
            some = self._all(partial(self._changed, parent), drawn[first : first + at_once])
            yield from (found for found in some if found is not None)

    def _all(self, make: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return [make(each) for each in items] if self._pool is None else self._pool.map(make, items)

    def _draws(self, count: int) -> list[Random]:
        """For candidates that are made at the same time: the same ones whoever is first."""
        return [Random(self.random.random()) for _ in range(count)]

    def _sample(self, draws: Random) -> Candidate | None:
        """Each decision is the rule's own, given those before it, as likely as a random one: what is good lies near."""
        rule = next((rule for rule in self.rules if draws.random() < _CHEAPEST), self.rules[0])
        default = self.make(rule, {})
        if default is None:
            return None
        for _ in range(_TRIES):
            drawn = {name: values for name, values in default.open.items() if draws.random() < _CHANGED}
            found = self.make(rule, {name: draws.choice(values) for name, values in drawn.items()})
            if found is not None:
                return found
        return None

    def _mutation(self, parent: Candidate, draws: Random) -> Candidate | None:
        changes = self._changes(parent)
        for change in draws.choices(changes, k=_TRIES) if changes else ():
            found = self._changed(parent, change)
            if found is not None:
                return found
        return None

    def _changes(self, parent: Candidate) -> list[tuple[str, int]]:
        """What one decision could be, each with its name."""
        return [(name, number) for name, numbers in parent.open.items() for number in numbers if len(numbers) > 1]

    def _changed(self, parent: Candidate, change: tuple[str, int]) -> Candidate | None:
        """The candidate with one decision changed; None where that is refused, or changes nothing."""
        name, _ = change
        numbers = dict([*parent.choice.decisions, change])
        before = list(parent.open)[: list(parent.open).index(name) + 1]
        shorter = {each: numbers[each] for each in before if each in numbers}
        found = self.make(parent.choice.rule, numbers) or self.make(parent.choice.rule, shorter)
        return found if found is not None and found.choice.plan != parent.choice.plan else None


def _promising(task: Task) -> list[str]:
    """The rules that take the task, cheapest first, without those whose cost is `_HOPELESS` times the cheapest
    one's."""
    costs = {rule.name: rule.cost(task.problem) for rule in schedules.rules(task.target)}
    usable = schedules.applicable(task.problem, task.target)
    limit = _HOPELESS * (costs[usable[0]] or 0.0)
    return [name for name in usable if (costs[name] or 0.0) <= limit]


def _choice(record: Any) -> Choice | None:
    sch = Schedule(record.workload.mod)
    record.trace.apply_to_schedule(sch, False)
    return choice_of(sch)
