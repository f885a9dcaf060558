"""Gradients as implicit matrix products, tile by tile: the rule for all that has enough channels.

    block (split, group, tile of rows, tile of columns)
      sums = 0                                       # in registers, f32
      for k in the split's part of the sum, by `depth`:
        wait for A's and B's tiles of k              # in shared memory
        begin to copy those `stages` - 1 later       # cp.async, 16 bytes a thread
        sums += A * B                                # tensor cores, or a thread's rows x columns
      result, or partial[split] = sums               # through shared memory, along the user's memory
    result = sum over splits of partial              # in a fixed order: the same bits on every run

f16 and bf16 go to tensor cores, with f32 sums. Products of f32 are f32's own, never TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx
from tvm.ir import IRModule

from tvmconvgrad.schedules.base import Scheduled
from tvmconvgrad.schedules.cuda import storing, writing
from tvmconvgrad.schedules.cuda.gemm_block import Block
from tvmconvgrad.schedules.cuda.gemm_plan import Plan, Planner
from tvmconvgrad.schedules.cuda.machine import Machine
from tvmconvgrad.schedules.cuda.operands import Operand, vector_lanes
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.stages import Stage, stages
from tvmconvgrad.schedules.cuda.storing import Results
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te import Sum, express, tensors
from tvmconvgrad.te.tensors import Index, Place


@dataclass(frozen=True)
class GemmRule:
    """Tiles of matrix products."""

    machine: Machine
    name: str = "gemm"

    def cost(self, problem: Problem) -> float | None:
        """Microseconds, about; None for sums that are no matrix products."""
        return Planner(self.machine, problem).least_cost()

    def schedule(self, problem: Problem, given: Mapping[str, int] | None = None) -> Scheduled:
        """The program that the module's text describes, with the numbers of `Planner.plan`."""
        decisions = Decisions(given or {})
        planner = Planner(self.machine, problem)
        plan = planner.plan(decisions)
        expression = express(problem, planner.multiples(plan.tile))
        module = _Program(problem, expression, plan).module()
        return Scheduled(expression, module, self.name, plan.numbers(), decisions.candidates)


@dataclass(frozen=True)
class _Program:
    problem: Problem
    expression: Sum
    plan: Plan

    @cached_property
    def stages(self) -> tuple[tuple[tirx.Buffer, ...], dict[str, Stage]]:
        return stages(self.expression)

    def module(self) -> IRModule:
        """Kernels that pack, multiply and add up."""
        parameters, found = self.stages
        out = tirx.decl_buffer(
            [writing.number(extent) for extent in self.problem.output_shape],
            tensors.result_dtype(self.problem),
            "out",
        )
        operands: dict[str, Operand] = {}
        workspace: list[tirx.Buffer] = []
        kernels: list[tirx.Stmt | None] = []
        for total, place in zip(self.expression.sums, self._places()):
            product = Product.of(self.problem, found[total])
            for number, load in enumerate(product.loads):
                name = str(load.source.name)
                operands.setdefault(name, Operand.of(self.problem, found[name], number))
            both = tuple(operands[str(load.source.name)] for load in product.loads)
            block = Block(product, (both[0], both[1]), self.plan, Results(product, out, place))
            workspace += [block.partial] if block.partial is not None else []
            kernels += block.kernels()
        workspace += [each.packed for each in operands.values() if each.packed is not None]
        before = [operand.pack() for operand in operands.values()]
        if self._leaves_zeros:
            before.append(storing.zero(out, vector_lanes(self.problem)))
        return writing.program([*parameters[:2], out], workspace, *before, *kernels)

    @property
    def _leaves_zeros(self) -> bool:
        """Whether the sums do not reach every element of the result."""
        return len(self.expression.results) > len(self.expression.sums)

    def _places(self) -> list[Callable[..., Place]]:
        """Where the elements of each sum belong."""
        if self.problem.gradient is Gradient.FILTER:
            return [self._filter_place]
        return list(self.expression.places[-len(self.expression.sums) :])

    def _filter_place(self, g: Index, *rest: Index) -> Place:
        *k, c, o = rest
        c_group, o_group = tensors.group_sizes(self.problem.geometry)
        multiples = vector_lanes(self.problem)
        inside = tensors.within(c, c_group, tensors.ceil_to(c_group, multiples))
        inside += tensors.within(o, o_group, tensors.ceil_to(o_group, multiples))
        return Place(inside, list(tensors.filter_index(self.problem.filter_axes, k, c, g * o_group + o)))
