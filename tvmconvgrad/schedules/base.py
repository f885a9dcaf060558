"""What a rule is: it knows which problems it takes and what they cost, chooses its numbers, and makes the program.

Nearly every rule does so in the steps of `PlannedRule`. The words are the same in every folder:

    rule      takes the problems of one pattern on one kind of target                     rule.py
    form      the problem with other axes, on the same memory: a rule takes one           spec/reducing/
    planner   for one problem: whether the rule takes it, the least cost, and the plan    plan.py
    tile      a register tile on CPUs, a thread block's on GPUs: chosen first             tiles.py (the candidates)
    access    how a tile reads operands and writes results: in place, packed, transposed  access.py
    cost      cycles of a core or microseconds of a GPU that a tile or a plan takes       tiles.py, cost.py
    partition how a plan splits a sum into work items                                     partition.py
    plan      all numbers of one program
    decision  a number of the plan that a search may change                               schedules/decisions.py
    nest      the program's loops, by the plan                                            rule.py, nest.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression
from tvmconvgrad.tir.rewriting import nodes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


CLEARLY_LESS = 0.95
"""A later form of a problem is taken if it costs at most so much of the best one before it. Of ten layers with filters
as 7x1, in f32 and bf16, in NCX and NXC, those with 0.72 to 0.95 took 0.58 to 0.93 of the time, but for one grouped
layer (1.22); those with 0.95 to 0.99 0.97 to 1.1 times (forwards and data gradients, an Intel Xeon with AMX)."""


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

    expression: Expression
    module: IRModule
    rule: str
    plan: Mapping[str, Any]
    """The numbers that made it, by name. They are what `inspect` prints."""
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
        numbers = ", ".join(f"{name}={value}" for name, value in self.plan.items())
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


PlanT_co = TypeVar("PlanT_co", covariant=True)


class Planner(Protocol[PlanT_co]):
    """What a rule knows of one problem before it writes a program."""

    def is_applicable(self) -> bool:
        """Whether the rule takes the problem."""

    def least_cost(self) -> float:
        """The cost of the best plan, in the unit of `Rule.cost`."""

    def plan(self, decisions: Decisions) -> PlanT_co:
        """All numbers of the program. Those that a search may change are drawn from `decisions`."""


AnyPlanner = TypeVar("AnyPlanner", bound=Planner[Any])


class PlannedRule(ABC, Generic[AnyPlanner]):
    """A rule whose numbers are a planner's."""

    gradients: ClassVar[frozenset[Gradient]] = frozenset(Gradient)
    """Those of the three sums that the rule may take."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which a user forces the rule."""

    @property
    def opt_level(self) -> int:
        """The level of LLVM's optimisation."""
        return 3

    def forms(self, problem: Problem) -> tuple[Problem, ...]:
        """The forms of a problem, on the same memory: the rule takes the first, or a later one that costs clearly
        less."""
        return (problem,)

    @abstractmethod
    def planner(self, problem: Problem) -> AnyPlanner:
        """What judges a problem, and chooses its numbers."""

    @abstractmethod
    def program(self, problem: Problem, planner: AnyPlanner, plan: Any) -> tuple[Expression, IRModule]:
        """The sum as a tensor expression, and its program: the loop nest, then rewrites, by the numbers of a plan."""

    def cost(self, problem: Problem) -> float | None:
        """The least cost of all plans: on CPUs cycles of one core, about, on GPUs microseconds. None if the rule does
        not take the problem."""
        if problem.gradient not in self.gradients:
            return None
        planned = self._planned(problem)
        return planned[1].least_cost() if planned else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the text of the rule's module describes, with the numbers of its planner."""
        decisions, planned = Decisions(given or {}), self._planned(problem)
        assert planned is not None, "the rule does not take the problem"
        form, planner = planned
        plan = planner.plan(decisions)
        expression, module = self.program(form, planner, plan)
        numbers = self.numbers(plan, decisions)
        return Scheduled(expression, module, self.name, numbers, decisions.candidates, self.opt_level)

    def _planned(self, problem: Problem) -> tuple[Problem, AnyPlanner] | None:
        """The form of a problem that the rule takes, and its planner; None if it takes none."""
        planners = ((form, self.planner(form)) for form in self.forms(problem))
        able = [(form, planner) for form, planner in planners if planner.is_applicable()]
        best = able[0] if able else None
        for form, planner in able[1:]:
            if best and planner.least_cost() <= CLEARLY_LESS * best[1].least_cost():
                best = form, planner
        return best

    def numbers(self, plan: Any, decisions: Decisions) -> dict[str, Any]:
        """The numbers that `inspect` prints. By them a tuning log notices that its decisions mean another program now
        (records/choice.py)."""
        return numbers_of(plan)
