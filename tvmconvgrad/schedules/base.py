"""What a schedule is: a rule that knows which problems it takes, plans its numbers, and rewrites the expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir.stmt import SBlock

from tvmconvgrad.schedules.rewriting import nodes
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Sum

PREFETCH, PREFETCH_FAR = "pragma_prefetch_distance", "pragma_prefetch_far"
"""Mark a loop: vectors that are read in it are to be fetched so many elements ahead, into the L1 cache or into L2, see
compiling/pipeline.py."""

CONDITION = "tvmconvgrad.condition"
"""Marks what is done under a condition, which compiling/pipeline.py sets once memory is planned: for what is read under
one TVM finds no constant bound, and a task would allocate all of a stage."""

TRANSPOSE = "pragma_transpose"
"""Marks two loops that copy what lies along the outer one to where it lies along the inner one, see
compiling/transposition.py."""

LEAST_SIDE = 4
"""How many elements must lie along each of them: less are copied one by one."""

MOST_APART = 4
"""The greatest stride at which vectors are loaded, or stored, with what lies between their elements."""

MASK = "pragma_mask"
"""Marks a loop over a vector's lanes that adds products to a sum, some of zeros, see compiling/masking.py."""

PAIRS = "pragma_pairs"
"""Marks a loop over a vector's lanes, of which each adds two products to its sum, see compiling/pairs.py."""

STREAM = "pragma_stream"
"""Marks a loop: vectors that are stored in it go to memory past the caches, see compiling/streaming.py."""


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
    def tasks(self) -> int:
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
