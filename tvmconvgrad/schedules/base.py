"""What a rule is: it knows which problems it takes and what they cost, chooses its numbers, and makes the program.

Nearly every rule does so in the steps of `PlannedRule`: a planner judges the problem and chooses the numbers, which are
a plan (plan.py of each folder); by them the sum is written as a tensor expression, and its loops are nested (rule.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Sum
from tvmconvgrad.tir.rewriting import nodes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def numbers_of(plan: DataclassInstance) -> dict[str, Any]:
    """A plan's numbers by their names, without those that are None: they do not apply. Enums are their values."""
    return asdict(plan, dict_factory=lambda pairs: {name: _plain(value) for name, value in pairs if value is not None})


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.value if isinstance(value, Enum) else value


@dataclass(frozen=True)
class Scheduled:
    """A problem's program, ready to be compiled, with the rule and the numbers that made it."""

    expression: Sum
    module: IRModule
    rule: str
    decisions: Mapping[str, int | list[int]]
    candidates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each number that a search may change, by name, the candidates that it was drawn from."""
    opt_level: int = 3
    """The level of LLVM's optimisation. At 3 it unrolls more loops than at 2, and takes longer to compile."""

    @property
    def work_items(self) -> int:
        """The number of parallel work items of the sums; of parallel loops that run one after the other, the fewest."""
        loops = [loop for loop in nodes(self.module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
        summing = [loop for loop in loops if any(block.name_hint.startswith("sum") for block in nodes(loop, SBlock))]
        return min((int(loop.extent) for loop in summing), default=1)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name}={value}" for name, value in self.decisions.items())
        return f"{self.rule}({numbers})"


class Rule(Protocol):
    """One way to compute a family of problems fast on one kind of target."""

    @property
    def name(self) -> str:
        """The name by which a user forces the rule."""

    def cost(self, problem: Problem) -> float | None:
        """The expected time, in a unit that all rules of the target share; None if the rule does not take `problem`."""

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program of a problem that `cost` accepts. Numbers in `given` replace the rule's own."""


Plan = TypeVar("Plan", covariant=True)


class Planner(Protocol[Plan]):
    """What a rule knows of one problem before it writes a program."""

    def is_applicable(self) -> bool:
        """Whether the rule takes the problem."""

    def least_cost(self) -> float:
        """The cost of the best plan, in the unit of `Rule.cost`."""

    def plan(self, decisions: Decisions) -> Plan:
        """All numbers of the program. Those that a search may change are drawn from `decisions`."""


AnyPlanner = TypeVar("AnyPlanner", bound=Planner[Any])


class PlannedRule(ABC, Generic[AnyPlanner]):
    """A rule whose numbers are a planner's."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which a user forces the rule."""

    @property
    def opt_level(self) -> int:
        """The level of LLVM's optimisation."""
        return 3

    @abstractmethod
    def planners(self, problem: Problem) -> Sequence[AnyPlanner]:
        """The planners that may take a problem. Most rules have one; Winograd's have one for each size of tiles."""

    @abstractmethod
    def program(self, problem: Problem, planner: AnyPlanner, plan: Any, decisions: Decisions) -> tuple[Sum, IRModule]:
        """The sum as a tensor expression, and its scheduled program, by the numbers of a plan."""

    def cost(self, problem: Problem) -> float | None:
        """The least cost of all plans: on CPUs cycles of one core, about, on GPUs microseconds. None if the rule does
        not take the problem."""
        return min((planner.least_cost() for planner in self._applicable(problem)), default=None)

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the text of the rule's module describes, with the numbers of its planner."""
        decisions = Decisions(given or {})
        planner = self.choose(self._applicable(problem), decisions)
        plan = planner.plan(decisions)
        expression, module = self.program(problem, planner, plan, decisions)
        return Scheduled(
            expression, module, self.name, self.numbers(plan, decisions), decisions.candidates, self.opt_level
        )

    def choose(self, planners: Sequence[AnyPlanner], decisions: Decisions) -> AnyPlanner:
        """Of the planners that take a problem, the one whose plan is used."""
        return planners[0]

    def numbers(self, plan: Any, decisions: Decisions) -> dict[str, Any]:
        """The numbers that `inspect` shows and a cache's description has."""
        return numbers_of(plan)

    def _applicable(self, problem: Problem) -> list[AnyPlanner]:
        return [planner for planner in self.planners(problem) if planner.is_applicable()]
