"""A gradient's sum as matrix products, one for each group: C[row, column] = sum over `summed` of A[row] * B[column].

    sum          rows        columns          summed
    filter       (*k, c)     o                (n, *y)
    data         (n, *t)     (phases, c)    (*j, o)
    forward      (n, *y)     o                (*k, c)

A is the data of x, or of y for the data gradient; B is the other operand. Neither matrix is ever made: an element is
looked up where the expression says that it is ("implicit GEMM").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tvm import tirx
from tvm.ir import TensorLoad

from tvmconvgrad.schedules.cuda.stages import Stage
from tvmconvgrad.schedules.cuda.writing import unflatten
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.rewriting import nodes, replaced, uses


@dataclass(frozen=True)
class Product:
    """One sum of an expression, seen as matrix products."""

    problem: Problem
    sum: Stage
    loads: tuple[TensorLoad, TensorLoad]
    """What the sum reads of A and of B."""
    most_channels: int = 0
    """How many channels of A meet all taps before the next ones do, at most; 0: all."""

    @classmethod
    def of(cls, problem: Problem, total: Stage, most_channels: int = 0) -> Product:
        """The products of a sum."""
        first, second = nodes(total.value, TensorLoad)
        return cls(problem, total, (first, second), most_channels)

    @property
    def is_filter(self) -> bool:
        """Whether the rows are those of a filter."""
        return self.problem.gradient is Gradient.FILTER

    @property
    def groups(self) -> int:
        """How many products there are."""
        return self.sum.shape[0 if self.is_filter else 1]

    @property
    def m_extents(self) -> tuple[int, ...]:
        """Extents of the axes that rows are made of."""
        shape = self.sum.shape
        return shape[1:-1] if self.is_filter else (shape[0], *shape[2:-1])

    @property
    def m(self) -> int:
        """Rows of C."""
        return prod(self.m_extents)

    @property
    def n(self) -> int:
        """Columns of C."""
        return self.sum.shape[-1]

    @property
    def k_extents(self) -> tuple[int, ...]:
        """Extents of the axes that are summed over."""
        return self.sum.extents[len(self.sum.variables) :]

    @property
    def chunk(self) -> int:
        """How many channels of A meet all taps before the next ones do.

        With few of them, taps that are taken one after the other, or are rows of a tile, meet nearly the same elements.
        """
        return gcd(self._of_a[-1], self.most_channels)

    @property
    def _of_a(self) -> tuple[int, ...]:
        """Extents of the axes whose last one are A's channels."""
        return self.m_extents if self.is_filter else self.k_extents

    def _by_chunks(self, flat: Index) -> list[Index]:
        """Where an element is along these axes."""
        *outer, channels = self._of_a
        part, *index, channel = unflatten(flat, (channels // self.chunk, *outer, self.chunk))
        return [*index, part * self.chunk + channel]

    def k_index(self, summed: Index) -> list[Index]:
        """Where a summed element is along each summed axis."""
        return unflatten(summed, self.k_extents) if self.is_filter else self._by_chunks(summed)

    @property
    def k(self) -> int:
        """Products that an element of C adds up."""
        return prod(self.k_extents)

    @property
    def is_separable(self) -> bool:
        """Whether B does not depend on rows: else this is no matrix product."""
        row_variables = self.sum.variables[1:-1] if self.is_filter else self.positions
        return not any(uses(index, var) for index in self.loads[1].indices for var in row_variables)

    def index(self, group: Index, row: Index, column: Index) -> list[Index]:
        """Where an element of C is in the sum."""
        if self.is_filter:
            return [group, *self._by_chunks(row), column]
        n, *position = unflatten(row, self.m_extents)
        return [n, group, *position, column]

    def looked_up(self, operand: int, group: Index, row: Index, column: Index, summed: Index) -> list[Index]:
        """Where the sum finds A's (0) or B's (1) element for a row, a column and a summed index.

        A's depends on the column no more than on its tile: see `Part.apart` in te/data_gradient.py.
        """
        bound = self.bound(group, row, column, summed)
        return [replaced(index, bound) for index in self.loads[operand].indices]

    def bound(self, group: Index, row: Index, column: Index, summed: Index) -> dict[tirx.Var, Index]:
        """The sum's variables where a row, a column and a summed index meet."""
        return dict(zip(self.extents, (*self.index(group, row, column), *self.k_index(summed))))

    @property
    def extents(self) -> dict[tirx.Var, int]:
        """The sum's variables, those that it sums over last, and their extents."""
        return dict(zip((*self.sum.variables, *self.sum.summed), self.sum.extents))

    @property
    def positions(self) -> tuple[tirx.Var, ...]:
        """The variables of images and of positions in them: where data is read, but for the tap."""
        if self.is_filter:
            return self.sum.summed
        n, _, *space, _ = self.sum.variables
        return (n, *space)
