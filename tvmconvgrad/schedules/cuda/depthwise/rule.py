"""Depthwise gradients on GPUs: groups of one channel each. There is no GEMM, and memory bandwidth is the limit.

Pattern. As many groups as channels on both sides, and at most 32 taps along the unrolled axis.

Data gradient and forward. A thread has some neighbouring groups, and a tile of neighbouring positions; in a strided
data gradient those of all output phases, which read the same elements.

    accumulators = 0                            # in registers: positions of the tile x groups
    for rows of what the tile reads:
      row                                       # loaded once, two rows ahead
      for positions and taps that read the row: accumulators += row * filter
      result = accumulators                     # of positions that have all their products

With many taps, or many output phases, only the taps along one axis are unrolled; those along the others are loops.

Weights gradient. A thread has some neighbouring groups, and the sums of all taps, or of those along the last axis.

    accumulators = 0                            # taps x groups
    for tiles of positions in the block's split of K, each thread's:
      for rows of what the tile reads of x:
        row of x, row of dy                     # loaded once, two rows ahead
        for positions and taps that read the row: accumulators += dy * row
    partial[split] = sums over the threads of the block that share groups
    result = sum over splits of partial         # in a fixed order

Why it is fast. Each row is loaded once for all taps, as vectors of neighbouring groups. In NXC groups are innermost, so
a warp reads whole cache lines. In NCX the tile lies along another axis than the last, so that neighbouring threads have
neighbouring positions; for the weights gradient, data is packed to NXC first.

Not done: no shared memory, since a row that neighbouring threads also read comes from L1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import IRModule

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cuda import results, writing
from tvmconvgrad.schedules.cuda.depthwise.data import Phase, PositionsKernel
from tvmconvgrad.schedules.cuda.depthwise.data_plan import PositionsPlanner
from tvmconvgrad.schedules.cuda.depthwise.operands import Lanes
from tvmconvgrad.schedules.cuda.depthwise.plan import DepthwisePlan, DepthwisePlanner
from tvmconvgrad.schedules.cuda.depthwise.weights import FilterKernel
from tvmconvgrad.schedules.cuda.depthwise.weights_plan import FilterPlanner
from tvmconvgrad.schedules.cuda.expression_stages import Stage, expression_stages
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Expression, tensors


@dataclass(frozen=True)
class DepthwiseRule(PlannedRule[DepthwisePlanner]):
    """The rule that the module's text describes."""

    machine: GpuMachine
    name = "depthwise"

    def planner(self, problem: Problem) -> DepthwisePlanner:
        """For a weights gradient, or for a sum of every position."""
        kind = FilterPlanner if problem.gradient is Gradient.FILTER else PositionsPlanner
        return kind(self.machine, problem)

    def program(self, problem: Problem, planner: DepthwisePlanner, plan: DepthwisePlan) -> tuple[Expression, IRModule]:
        """The kernels, written out by the plan."""
        expression = express(problem)
        return expression, _Program(problem, expression, plan).module()

    def numbers(self, plan: DepthwisePlan, decisions: Decisions) -> dict[str, Any]:
        """Those that were drawn: the plan's others follow from them."""
        return dict(decisions.drawn)


@dataclass(frozen=True)
class _Program:
    problem: Problem
    expression: Expression
    plan: DepthwisePlan

    def module(self) -> IRModule:
        """A kernel for all phases, or for each, or for the filter's sum; and those before and after it."""
        parameters, found = expression_stages(self.expression)
        out = results.result(self.problem)
        lanes: dict[str, Lanes] = {}
        workspace: list[tirx.Buffer] = []
        kernels: list[tirx.Stmt] = []
        phases: list[Phase] = []
        for total, output_map in zip(self.expression.sums, results.output_maps(self.problem, self.expression, found)):
            product = Product.of(self.problem, found[total])
            a, b = (self._lanes(product, found, number, lanes) for number in (0, 1))
            written = results.Results(product, out, output_map)
            if self.problem.gradient is Gradient.FILTER:
                filters = FilterKernel(written, a, b, self.plan)
                workspace.append(filters.partial)
                kernels += [filters.kernel(), results.sum_split_k(written, filters.partial)]
            else:
                phases.append(Phase(written, a, b))
        together = [phases] if self.plan.whole else [[phase] for phase in phases]
        kernels += [PositionsKernel(each, self.plan).kernel() for each in together if each]
        workspace += [each.packed for each in lanes.values() if each.packed is not None]
        before = [each.pack() for each in lanes.values()]
        if self.expression.zeros:
            before.append(results.zero(out, vector_lanes(self.problem)))
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
