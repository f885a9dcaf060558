"""What a rule is: it knows which problems it takes and what they cost, chooses its numbers, and makes the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

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
