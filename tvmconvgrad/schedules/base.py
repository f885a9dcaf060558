"""What a schedule is: a rule that knows which problems it takes, plans its numbers, and rewrites the expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Sum
from tvmconvgrad.tir.rewriting import nodes


@dataclass(frozen=True)
class Scheduled:
    """A problem's program, ready to be compiled, and where it came from."""

    expression: Sum
    module: IRModule
    rule: str
    decisions: Mapping[str, int | list[int]]
    candidates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What the numbers that a search may change were drawn from, by name."""

    @property
    def work_items(self) -> int:
        """How many parallel tasks the sums are, the fewest of those that run one after the other."""
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
        """What a user forces it by."""

    def cost(self, problem: Problem) -> float | None:
        """Expected time, in any unit that the target's rules share; None: not mine."""

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The scheduled program of a problem that `cost` accepted; the numbers are the rule's, but for those given."""
