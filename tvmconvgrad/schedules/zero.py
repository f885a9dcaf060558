"""Problems without products: the result is zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm.s_tir import Schedule

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Expression

ZERO = "zero"


@dataclass(frozen=True)
class ZeroRule:
    """Takes the problems without products, which no other rule takes."""

    fill: Callable[[Schedule, Expression], None]
    """Schedules what an expression has beside its sums for the target."""
    name: str = ZERO

    def cost(self, problem: Problem) -> float | None:
        """0, since no other rule takes the problem; None if it has products."""
        return 0.0 if problem.is_zero else None

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that fills the result."""
        expression = express(problem)
        sch = Schedule(expression.prim_func())
        self.fill(sch, expression)
        return Scheduled(expression, apply_output_maps(sch.mod, expression, problem), self.name, {})
