"""What a search chooses from: the schedules of a problem with their decisions open. Importing this imports TVM.

A candidate is a rule with numbers for its decisions. What a number may be depends on those drawn before it, and layouts
and loops depend on all of them, so a candidate is made by scheduling anew; what a rule refuses is no candidate.
MetaSchedule sees its program, and a trace that holds the draws by name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm.s_tir import Schedule

from tvmconvgrad import schedules
from tvmconvgrad.choice import Choice
from tvmconvgrad.schedules import Scheduled, traces
from tvmconvgrad.schedules.chosen import given
from tvmconvgrad.schedules.stock import workload
from tvmconvgrad.tuning.metaschedule import ArgInfo, MeasureCandidate
from tvmconvgrad.tuning.task import Task

PREFIX = "tvmconvgrad."
_TRIES = 40
_KEPT = 256  # programs that are kept in memory
_TASKS = 16
"""How many parallel tasks a candidate must have, unless the default has fewer: few and large ones may be the fastest on
the threads of a search, and would leave the cores of another machine idle."""

_HOPELESS = 8.0  # times the cheapest rule's cost
_CHEAPEST = 0.6
"""How likely a random candidate is of the cheapest rule; each further one takes the same part of what is left."""

_CHANGED = 0.5
"""How likely a decision of a random candidate is drawn, and not the rule's own."""


@dataclass(frozen=True)
class Candidate:
    """A scheduled program, with the choice that it was made by."""

    choice: Choice
    measured: Any = field(repr=False, compare=False)
    """MetaSchedule's MeasureCandidate."""
    open: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    """What each decision may be, given those before it."""

    @property
    def module(self) -> tvm.IRModule:
        """The program."""
        return self.measured.sch.mod


class DecisionSpace:
    """The candidates of a task. Those with the same program are one."""

    name = "decisions"
    instructions = traces.OURS

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task = task
        self.rules = _promising(task)
        self._by_name = {rule.name: rule for rule in schedules.rules(task.target)}
        self.random = random.Random(seed)
        self._least_tasks = min(_TASKS, given(task.problem, self._by_name[self.rules[0]], {}).tasks)
        self._made: dict[tuple[str, tuple[tuple[str, int], ...]], Candidate | None] = {}

    def workload(self) -> tvm.IRModule:
        """The task's mathematics, not scheduled: what MetaSchedule calls the workload."""
        return workload(self.task.problem)

    def default(self, rule: str | None = None) -> Candidate:
        """What a rule does without a search, by default the cheapest rule."""
        found = self.make(rule or self.rules[0], {})
        assert found is not None, "a rule refuses its own numbers"
        return found

    def make(self, rule: str, numbers: Mapping[str, int]) -> Candidate | None:
        """The candidate with these numbers, the rule's own where there are none; None where the rule refuses them."""
        key = (rule, tuple(sorted(numbers.items())))
        if key not in self._made:
            while len(self._made) >= _KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = self._schedule(rule, numbers)
        return self._made[key]

    def _schedule(self, rule: str, numbers: Mapping[str, int]) -> Candidate | None:
        try:
            scheduled = given(self.task.problem, self._by_name[rule], numbers)
        except ValueError:
            return None
        return _candidate(scheduled, numbers) if scheduled.tasks >= self._least_tasks or not numbers else None

    def program(self, sch: Schedule) -> tvm.IRModule:
        """What is to be built for a candidate's schedule."""
        return sch.mod

    def knows(self, record: Any) -> bool:
        """Whether a record names a rule and its numbers."""
        try:
            _choice(record)
        except ValueError:
            return False
        return True

    def from_record(self, record: Any) -> Candidate | None:
        """The candidate of a record; None where its numbers mean something else today."""
        choice = _choice(record)
        if choice.rule not in self.rules:
            return None
        found = self.make(choice.rule, dict(choice.decisions))
        return found if found is not None and found.choice == choice else None

    def describe(self, sch: Schedule) -> str:
        """A candidate for people."""
        return choice_of(sch).plan

    def sample(self) -> Candidate | None:
        """A random candidate of a random rule, mostly of the cheapest; None where many draws are refused.

        Each decision is the rule's own, given those before it, as likely as a random one: what is good lies near.
        """
        rule = next((rule for rule in self.rules if self.random.random() < _CHEAPEST), self.rules[0])
        options = self.default(rule).open
        for _ in range(_TRIES):
            drawn = {name: values for name, values in options.items() if self.random.random() < _CHANGED}
            found = self.make(rule, {name: self.random.choice(values) for name, values in drawn.items()})
            if found is not None:
                return found
        return None

    def mutate(self, parent: Candidate) -> Candidate | None:
        """A candidate that differs in one decision; those that depend on it follow the rule where they must."""
        changes = self._changes(parent)
        for name, number in self.random.choices(changes, k=_TRIES) if changes else ():
            found = self._changed(parent, name, number)
            if found is not None:
                return found
        return None

    def neighbours(self, parent: Candidate) -> Iterator[Candidate]:
        """All candidates that differ in one decision, in random order; each is made when it is asked for."""
        changes = self._changes(parent)
        for name, number in self.random.sample(changes, len(changes)):
            found = self._changed(parent, name, number)
            if found is not None:
                yield found

    def _changes(self, parent: Candidate) -> list[tuple[str, int]]:
        """What one decision could be, each with its name."""
        return [(name, number) for name, numbers in parent.open.items() for number in numbers if len(numbers) > 1]

    def _changed(self, parent: Candidate, name: str, number: int) -> Candidate | None:
        """The candidate with one decision changed; None where that is refused, or changes nothing."""
        numbers = {**dict(parent.choice.decisions), name: number}
        before = list(parent.open)[: list(parent.open).index(name) + 1]
        shorter = {each: numbers[each] for each in before if each in numbers}
        found = self.make(parent.choice.rule, numbers) or self.make(parent.choice.rule, shorter)
        return found if found is not None and found.choice.plan != parent.choice.plan else None


def _promising(task: Task) -> list[str]:
    """The rules that take the task, the cheapest first, without those that are hopeless by their own account."""
    costs = {rule.name: rule.cost(task.problem) for rule in schedules.rules(task.target)}
    usable = schedules.applicable(task.problem, task.target)
    limit = _HOPELESS * (costs[usable[0]] or 0.0)
    return [name for name in usable if (costs[name] or 0.0) <= limit]


def _candidate(scheduled: Scheduled, numbers: Mapping[str, int]) -> Candidate:
    choice = Choice.of(scheduled.rule, numbers, str(scheduled))
    sch = Schedule(scheduled.module)
    root = sch.get_sblock("root")
    sch.annotate(root, f"{PREFIX}rule", choice.rule)
    sch.annotate(root, f"{PREFIX}plan", choice.plan)
    for name, number in numbers.items():
        options = scheduled.candidates[name]
        drawn = sch.sample_categorical(list(options), [1.0 / len(options)] * len(options), options.index(number))
        sch.annotate(root, PREFIX + name, drawn)
    arguments = ArgInfo.from_prim_func(scheduled.module["main"])
    return Candidate(choice, MeasureCandidate(sch, arguments), dict(scheduled.candidates))


def _choice(record: Any) -> Choice:
    sch = Schedule(record.workload.mod)
    record.trace.apply_to_schedule(sch, False)
    return choice_of(sch)


def choice_of(sch: Schedule) -> Choice:
    """What the schedule of a candidate, or one that its trace was replayed on, was chosen by. ValueError."""
    notes = dict(sch.get(sch.get_sblock("root")).annotations.items())
    ours = {str(name).removeprefix(PREFIX): note for name, note in notes.items() if str(name).startswith(PREFIX)}
    if not {"rule", "plan"} <= set(ours):
        raise ValueError("the trace names no rule of ours")
    rule, plan = str(ours.pop("rule")), str(ours.pop("plan"))
    return Choice.of(rule, {name: int(note) for name, note in ours.items()}, plan)
