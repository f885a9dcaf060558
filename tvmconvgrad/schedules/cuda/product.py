"""A gradient's sum as matrix products, one for each group: C[m, n] = sum over k of A[m, k] * B[k, n] (implicit GEMM).

    sum          M           N                K
    weights      (*k, c)     o                (n, *y)
    data         (n, *t)     (phases, c)      (*j, o)
    forward      (n, *y)     o                (*k, c)

A is x, or dy for the data gradient; B is the other operand. The names in brackets are those of te/. Neither matrix is
ever stored: the expression says where an element lies in the user's tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from tvm import tirx
from tvm.ir import TensorLoad

from tvmconvgrad.schedules.cuda.expression_stages import Stage
from tvmconvgrad.schedules.cuda.writing import unflatten
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.te.tensors import Index
from tvmconvgrad.tir.rewriting import nodes, replaced


@dataclass(frozen=True)
class Product:
    """One sum of an expression as matrix products."""

    problem: Problem
    sum: Stage
    loads: tuple[TensorLoad, TensorLoad]
    """The sum's loads of A and of B."""
    most_channels: int = 0
    """The most channels in a block of A's channels (see `channel_block`); 0: all."""

    @classmethod
    def of(cls, problem: Problem, total: Stage, most_channels: int = 0) -> Product:
        """The products of a sum."""
        first, second = nodes(total.value, TensorLoad)
        return cls(problem, total, (first, second), most_channels)

    @property
    def is_filter(self) -> bool:
        """Whether C is a filter."""
        return self.problem.gradient is Gradient.FILTER

    @property
    def groups(self) -> int:
        """The number of matrix products."""
        return self.sum.shape[0 if self.is_filter else 1]

    @property
    def m_extents(self) -> tuple[int, ...]:
        """The extents of the axes that make up M."""
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
        """The extents of the axes that make up K."""
        return self.sum.extents[len(self.sum.variables) :]

    @property
    def channel_block(self) -> int:
        """The size of a block of A's channels: the taps of one block follow each other before those of the next block.

        With small blocks, taps that follow each other, or that are rows of one tile, read nearly the same elements.
        """
        return gcd(self._of_a[-1], self.most_channels)

    @property
    def _of_a(self) -> tuple[int, ...]:
        """The extents of the axes, of M or K, that taps and A's channels make up; channels are last."""
        return self.m_extents if self.is_filter else self.k_extents

    def _by_channel_blocks(self, flat: Index) -> list[Index]:
        """The index along each of these axes of the element with the number `flat`."""
        *outer, channels = self._of_a
        part, *index, channel = unflatten(flat, (channels // self.channel_block, *outer, self.channel_block))
        return [*index, part * self.channel_block + channel]

    def k_index(self, k: Index) -> list[Index]:
        """The index along each axis of K of the k-th element."""
        return unflatten(k, self.k_extents) if self.is_filter else self._by_channel_blocks(k)

    @property
    def k(self) -> int:
        """K: the products that an element of C adds up."""
        return prod(self.k_extents)

    def index(self, group: Index, row: Index, column: Index) -> list[Index]:
        """The index in the sum of the element C[row, column] of a group."""
        if self.is_filter:
            return [group, *self._by_channel_blocks(row), column]
        n, *position = unflatten(row, self.m_extents)
        return [n, group, *position, column]

    def operand_index(self, operand: int, group: Index, row: Index, column: Index, k: Index) -> list[Index]:
        """The index in its stage of A's (operand 0) or B's (operand 1) element for m, n and k.

        A's index is the same for all columns of one tile: see `PhaseConvolution.own_first_positions` in
        te/data_gradient.py.
        """
        bound = self.bound(group, row, column, k)
        return [replaced(index, bound) for index in self.loads[operand].indices]

    def bound(self, group: Index, row: Index, column: Index, k: Index) -> dict[tirx.Var, Index]:
        """The values of the sum's variables for m, n and k."""
        return dict(zip(self.extents, (*self.index(group, row, column), *self.k_index(k))))

    @property
    def extents(self) -> dict[tirx.Var, int]:
        """The sum's variables with their extents; those that it sums over are last."""
        return dict(zip((*self.sum.variables, *self.sum.summed), self.sum.extents))

    @property
    def positions(self) -> tuple[tirx.Var, ...]:
        """The variables of images and positions."""
        if self.is_filter:
            return self.sum.summed
        n, _, *space, _ = self.sum.variables
        return (n, *space)
