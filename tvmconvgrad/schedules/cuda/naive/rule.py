"""Any gradient on a GPU: a thread for each element of the result.

    block of 256 threads for each run of 256 elements of the result, in the order in which they lie:
      thread: total = 0                                        # in a register
              for positions, taps and channels of K: total += data * filter
              result = total

Pattern. It takes every problem, also those that no other rule takes. Operands are read in place, with conditions for
padding, and converted. Neighbouring threads write neighbouring elements.

Not done: no reuse. It loads two numbers for each product, so it is slow where there are many products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconvgrad.machines.gpu import LAUNCH
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.schedules.transforms.epilogue import apply_output_maps
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression

BLOCKS = (64, 128, 256, 512)
"""The numbers of threads that a block may have."""
_MOST_STEPS = 2**31
_PRODUCTS = 5e5
"""Chosen, not measured: multiply-adds of the GPU in a microsecond by this rule. Far below the peak: where
another rule takes the problem, that one is chosen."""
_THREAD_PRODUCTS = 50.0
"""Chosen, not measured: multiply-adds of one thread in a microsecond, each of which waits for memory. It counts where
results are few."""


@dataclass(frozen=True)
class NaiveRule:
    """The rule that the module's text describes."""

    name = "naive"

    def cost(self, problem: Problem) -> float | None:
        """Microseconds, about."""
        at_once = min(_PRODUCTS, _THREAD_PRODUCTS * max(prod(problem.output_shape), 1))
        return LAUNCH + problem.flops / 2 / at_once

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes."""
        decisions = Decisions(given or {})
        threads = decisions.draw("threads", BLOCKS, 256)
        expression = express(problem)
        sch = Schedule(expression.prim_func())
        for operand in expression.operands:
            sch.compute_inline(sch.get_sblock(operand))
        fill_zeros(sch, expression, threads)
        axes = order(problem)
        for name, result in zip(expression.sums, expression.sum_results):
            total = sch.get_sblock(name)
            loops = sch.get_loops(total)
            thread = _bind(sch, [loops[axis] for axis in axes], threads)
            sch.decompose_reduction(total, loops[len(axes)])
            sch.reverse_compute_at(sch.get_sblock(result.op.name), thread)
            sch.set_scope(total, 0, "local")
        module = apply_output_maps(sch.mod, expression, problem)
        return Scheduled(expression, module, self.name, dict(decisions.drawn), decisions.candidates)


def fill_zeros(sch: Schedule, expression: Expression, threads: int = 256) -> None:
    """Schedule an expression's stages of zeros, with a thread for each element."""
    for name in expression.zeros:
        _bind(sch, sch.get_loops(sch.get_sblock(name)), threads)


def order(problem: Problem) -> list[int]:
    """The axes of a sum in the order of the user's tensor, outermost first."""
    rank = problem.geometry.rank
    if problem.gradient is Gradient.FILTER:
        g, *taps, c, o = range(rank + 3)
        places = {"X": taps, "C": [c], "O": [g, o]}
        return [axis for letter in problem.filter_axes for axis in places[letter]]
    n, g, *positions, channel = range(rank + 3)
    return [n, *positions, g, channel] if problem.data_format == "NXC" else [n, g, channel, *positions]


def _bind(sch: Schedule, loops: Sequence[LoopRV], threads: int) -> LoopRV:
    """Bind some loops to threads, one for each step; neighbouring threads take neighbours along the last loop.

    The extent of a fused loop must fit 31 bits for TVM to divide by it, so loops outside of that become another axis of
    blocks.
    """
    sch.reorder(*loops)
    sizes = [int(sch.get(loop).extent) for loop in loops]
    first = next(place for place in range(len(loops)) if prod(sizes[place:]) < _MOST_STEPS)
    outer, inner = sch.split(sch.fuse(*loops[first:]), [None, threads])
    if first:
        sch.bind(sch.fuse(*loops[:first]), "blockIdx.y")
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")
    return inner
