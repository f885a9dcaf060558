"""Gradients as implicit GEMMs on GPUs.

Pattern. C[m, n] = sum over k of A[m, k] * B[k, n], for each group: ../product.py says what M, N and K of each sum are.
It takes all gradients on sm_80 and later, except data gradients whose sum goes over positions of dy
(te/data_gradient.py). Layers with few channels a group are cheaper by other rules.

Loop nest:

    block (split of K, group, tile of M, tile of N)  # a CTA
      accumulators = 0                               # in registers, f32
      for k in the split, by BLOCK_K:                # mainloop.py
        wait for A's and B's tiles of k              # in shared memory
        begin to copy the tiles of a later stage     # cp.async, 16 bytes a thread, or TMA
        for a few elements of k at a time:
          load the next ones' A and B                # to registers; wgmma reads shared memory itself
          accumulators += A * B                      # mma, wgmma, or FMAs
      result, or partial[split] = accumulators       # epilogue.py: through shared memory, along the user's memory
    result = sum over splits of partial              # in a fixed order: the same bits on every run

Why it is fast.
1. Copies of later stages are in flight while a stage is multiplied (software pipelining).
2. Where tiles are few, split-K occupies all SMs. The splits of a tile may be a cluster, whose blocks add up the
   accumulators in each other's shared memory (in-cluster split-K): then there are fewer partial sums in global memory,
   or none.
3. Neighbouring taps read nearly the same elements of A. They are copied through L1 where that is worth it (shapes.py).
4. On Hopper TMA copies whole tiles, and multicasts them to two blocks of a cluster if these share them
   (copies/tma_tiles.py).
5. f16 and bf16 are multiplied on tensor cores, with f32 accumulators. f32 is multiplied on FMA units, unless the
   target's `fpmath_mode` allows TF32.

Not done: no im2col matrix is stored. There is no stream-K, since its order of summation depends on the number of SMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.ir import IRModule

from tvmconvgrad.machines.gpu import GpuMachine
from tvmconvgrad.schedules.base import PlannedRule
from tvmconvgrad.schedules.cuda import results, writing
from tvmconvgrad.schedules.cuda.expression_stages import expression_stages
from tvmconvgrad.schedules.cuda.gemm.block import ThreadBlock, kernel
from tvmconvgrad.schedules.cuda.gemm.operands import Operand
from tvmconvgrad.schedules.cuda.gemm.plan import GemmPlan, GemmPlanner
from tvmconvgrad.schedules.cuda.packing import vector_lanes
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.schedules.expressions import express
from tvmconvgrad.spec import Problem
from tvmconvgrad.te import Expression


@dataclass(frozen=True)
class GemmRule(PlannedRule[GemmPlanner]):
    """The rule that the module's text describes."""

    machine: GpuMachine
    may_round: bool
    """Whether f32 may be rounded to TF32."""
    name = "gemm"

    def planner(self, problem: Problem) -> GemmPlanner:
        """The planner of a problem's matrix products."""
        return GemmPlanner(self.machine, problem, self.may_round)

    def program(self, problem: Problem, planner: GemmPlanner, plan: GemmPlan) -> tuple[Expression, IRModule]:
        """The kernels, written out by the plan."""
        expression = express(problem, planner.blocking(plan.tile))
        return expression, _Program(problem, expression, plan).module()

    def numbers(self, plan: GemmPlan, decisions: Decisions) -> dict[str, Any]:
        """The plan's numbers, by the names that tuning logs have for them."""
        return plan.numbers()


@dataclass(frozen=True)
class _Program:
    problem: Problem
    expression: Expression
    plan: GemmPlan

    def module(self) -> IRModule:
        """The program: kernels that pack operands, fill zeros, multiply, and add up splits."""
        parameters, found = expression_stages(self.expression)
        out = results.result(self.problem)
        operands: dict[str, Operand] = {}
        blocks: list[ThreadBlock] = []
        output_maps = results.output_maps(self.problem, self.expression, found)
        for total, output_map in zip(self.expression.sums, output_maps):
            product = Product.of(self.problem, found[total], self.plan.channel_block)
            for number, load in enumerate(product.loads):
                name = str(load.source.name)
                operands.setdefault(name, Operand.of(self.problem, found[name], number))
            a, b = (operands[str(load.source.name)] for load in product.loads)
            blocks.append(ThreadBlock(product, (a, b), self.plan, results.Results(product, out, output_map)))
        workspace = [each.packed for each in operands.values() if each.packed is not None]
        workspace += [block.partial for block in blocks if block.partial is not None]
        before = [operand.pack() for operand in operands.values()]
        if self.expression.zeros:
            before.append(results.zero(out, vector_lanes(self.problem)))
        sums = [results.sum_split_k(block.results, block.partial) for block in blocks if block.partial is not None]
        kernels = [*before, kernel(blocks), *sums]
        maps = [tma_tiles.map for block in blocks for tma_tiles in block.tma_tiles]
        ahead = sum(each is not None for each in before)
        clusters = {ahead: blocks[0].cluster} if blocks[0].cluster > 1 else {}
        return writing.program([*parameters[:2], out], workspace, *kernels, maps=maps, clusters=clusters)
