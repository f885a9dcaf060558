"""Depthwise gradients: groups of one channel each, which have no matrix product, and little to do for each byte.

Data and forward: a thread has some neighbouring groups, and a tile of neighbouring positions: of a strided data
gradient those of all phases, which meet the same elements.

    sums = 0                                    # in registers: outputs of the tile x groups
    for rows of what the tile meets, the window:
      row of the window                         # read once, two rows ahead
      for outputs and taps that meet the row: sums += row * filter
      result = sums                             # of outputs that have met all

With many taps, or many phases, only the taps along one axis are written out so, and those along others are loops.

Filter: a thread has some neighbouring groups, and the sums of all taps, or of those along the last axis.

    sums = 0                                    # taps x groups
    for tiles of positions in the block's part of all positions, each thread's:
      for rows of what the tile meets in Y:
        row of Y, row of X                      # read once, two rows ahead
        for positions and taps that meet the row: sums += X * row
    partial[part] = sums over the threads of the block that share groups
    result = sum over parts of partial          # in a fixed order

Groups lie innermost in NXC: a warp then reads whole lines. In NCX the tile goes along another axis than the last, so
that neighbouring threads have neighbouring positions; for the filter's gradient, data is packed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import IRModule

from tvmconvgrad.machines.gpu import Machine
from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.depthwise.data import Phase, PositionsKernel
from tvmconvgrad.schedules.cuda.depthwise.data_plan import PositionsPlanner
from tvmconvgrad.schedules.cuda.depthwise.operands import Lanes
from tvmconvgrad.schedules.cuda.depthwise.plan import Plan, Planner
from tvmconvgrad.schedules.cuda.depthwise.weights import FilterKernel
from tvmconvgrad.schedules.cuda.depthwise.weights_plan import FilterPlanner
from tvmconvgrad.schedules.cuda.gemm import epilogue
from tvmconvgrad.schedules.cuda.gemm.epilogue import Results, places
from tvmconvgrad.schedules.cuda.gemm.operands import vector_lanes
from tvmconvgrad.schedules.cuda.gemm.product import Product
from tvmconvgrad.schedules.cuda.stages import Stage, stages
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Multiples, Sum, express, tensors


@dataclass(frozen=True)
class DepthwiseRule:
    """The rule that the module's text describes."""

    machine: Machine
    name: str = "depthwise"

    def cost(self, problem: Problem) -> float | None:
        """Microseconds, about; None where groups have several channels."""
        return self._planner(problem).cost()

    def _planner(self, problem: Problem) -> Planner:
        kind = FilterPlanner if problem.gradient is Gradient.FILTER else PositionsPlanner
        return kind(self.machine, problem)

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes."""
        decisions = Decisions(given or {})
        plan = self._planner(problem).plan(decisions)
        expression = express(problem, Multiples())
        module = _Program(problem, expression, plan).module()
        return Scheduled(expression, module, self.name, dict(decisions.drawn), decisions.candidates)


@dataclass(frozen=True)
class _Program:
    problem: Problem
    expression: Sum
    plan: Plan

    def module(self) -> IRModule:
        """A kernel for all phases, or for each, or for the filter's sum; and those before and after it."""
        parameters, found = stages(self.expression)
        out = epilogue.result(self.problem)
        lanes: dict[str, Lanes] = {}
        workspace: list[tirx.Buffer] = []
        kernels: list[tirx.Stmt] = []
        phases: list[Phase] = []
        for total, place in zip(self.expression.sums, places(self.problem, self.expression, Multiples())):
            product = Product.of(self.problem, found[total])
            a, b = (self._lanes(product, found, number, lanes) for number in (0, 1))
            results = Results(product, out, place)
            if self.problem.gradient is Gradient.FILTER:
                filters = FilterKernel(results, a, b, self.plan)
                workspace.append(filters.partial)
                kernels += [filters.kernel(), epilogue.sum_splits(results, filters.partial)]
            else:
                phases.append(Phase(results, a, b))
        together = [phases] if self.plan.whole else [[phase] for phase in phases]
        kernels += [PositionsKernel(each, self.plan).kernel() for each in together if each]
        workspace += [each.packed for each in lanes.values() if each.packed is not None]
        before = [each.pack() for each in lanes.values()]
        if self.expression.zeros:
            before.append(epilogue.zero(out, vector_lanes(self.problem)))
        return writing.program([*parameters[:2], out], workspace, *before, *kernels)

    def _lanes(self, product: Product, found: dict[str, Stage], number: int, packed: dict[str, Lanes]) -> Lanes:
        """What the sum reads of A (0) or B (1). A stage that is packed is packed once."""
        load = product.loads[number]
        stage, count = found[str(load.source.name)], self.plan.lanes
        is_data = number == 0 or product.is_filter
        innermost = self.problem.data_format == "NXC" if is_data else self.problem.filter_axes.endswith("O")
        if innermost or not product.is_filter:
            return Lanes(product.sum, load, stage, count, innermost)
        n, groups, _, *space = stage.shape
        buffer = writing.memory(
            f"{stage.name}_packed", (n, *space, groups), tensors.DTYPES[self.problem.dtype], "global"
        )
        return packed.setdefault(stage.name, Lanes(product.sum, load, stage, count, False, buffer))
