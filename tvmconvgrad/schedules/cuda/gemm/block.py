"""The multiplying kernel of schedules/cuda/gemm/rule.py: what each of its thread blocks does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.clusters import Cluster
from tvmconvgrad.schedules.cuda.gemm import epilogue
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.copies.cp_async import (
    ColumnTile,
    Copier,
    PaddedTile,
    RegisterTile,
    SharedTile,
    TileOrigin,
)
from tvmconvgrad.schedules.cuda.gemm.copies.swizzle import ALIGNMENT, SwizzledTile
from tvmconvgrad.schedules.cuda.gemm.copies.tma_pipeline import BARRIER, TmaPipeline
from tvmconvgrad.schedules.cuda.gemm.copies.tma_tiles import TmaTiles
from tvmconvgrad.schedules.cuda.gemm.mainloop import Pipeline, Registers
from tvmconvgrad.schedules.cuda.gemm.operands import Operand
from tvmconvgrad.schedules.cuda.gemm.plan import GemmPlan
from tvmconvgrad.schedules.cuda.gemm.tiles import RESULT_PAD
from tvmconvgrad.schedules.cuda.gemm.units.fma import FmaUnits
from tvmconvgrad.schedules.cuda.gemm.units.tensor_cores import TensorCores
from tvmconvgrad.schedules.cuda.gemm.units.tensor_cores_from_registers import TensorCoresFromRegisters
from tvmconvgrad.schedules.cuda.gemm.units.warpgroups import Warpgroups
from tvmconvgrad.schedules.cuda.hardware import VECTOR_BYTES, WARP
from tvmconvgrad.schedules.cuda.product import Product
from tvmconvgrad.schedules.cuda.ptx import clusters, instructions
from tvmconvgrad.schedules.cuda.results import Results
from tvmconvgrad.schedules.cuda.writing import number
from tvmconvgrad.te.tensors import ACCUMULATOR, Index, ceil_to


@dataclass(frozen=True)
class ThreadBlock:
    """The thread blocks of one product."""

    product: Product
    operands: tuple[Operand, Operand]
    plan: GemmPlan
    results: Results

    @property
    def tiles(self) -> tuple[SharedTile, SharedTile]:
        """A's and B's tiles in shared memory."""
        a, b = self.operands
        return self.plan.units.shared(self.plan.tile, self.plan.block_k, (a.along == "k", b.along == "k"))

    @property
    def units(self) -> FmaUnits | TensorCores | Warpgroups | TensorCoresFromRegisters:
        """The units that multiply."""
        (a, b), dtype, workers = self.tiles, self.plan.units.dtype, self.plan.tile.workers
        if isinstance(a, RegisterTile) and isinstance(b, ColumnTile):
            return TensorCoresFromRegisters(dtype, a, b, workers[0])
        if isinstance(a, SwizzledTile) and isinstance(b, SwizzledTile):
            return Warpgroups(dtype, a, b, workers)
        assert isinstance(a, PaddedTile) and isinstance(b, PaddedTile)
        return TensorCores(dtype, a, b, workers) if self.plan.units.is_tensor else FmaUnits(a, b, workers)

    @property
    def mma_threads(self) -> int:
        """Threads of a block that multiply."""
        return self.plan.units.threads(self.plan.tile)

    @property
    def threads(self) -> int:
        """All threads of a block: with TMA there is one more warp, the producer."""
        return self.mma_threads + (WARP if self.plan.copies.by_tma else 0)

    @property
    def steps(self) -> int:
        """The number of BLOCK_K steps of a block."""
        return -(-self.product.k // self.plan.block_k // self.plan.split_k)

    @property
    def split_k(self) -> int:
        """The number of splits of K, none of which is empty."""
        return -(-self.product.k // (self.plan.block_k * self.steps))

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.plan.in_cluster * self.plan.copies.blocks

    @cached_property
    def partial(self) -> tirx.Buffer | None:
        """The partial sums (split, group, m, n) in global memory, after clusters have added up theirs; None with one
        split."""
        count = self.grid[0] // self.plan.in_cluster
        if count == 1:
            return None
        product = self.product
        shape = (count, product.groups, product.m, product.n)
        return writing.memory(f"{product.sum.name}_partial", shape, ACCUMULATOR, "global")

    @property
    def grid(self) -> tuple[int, int, int, int]:
        """The numbers of splits, groups, tiles along M and tiles along N, rounded up to whole clusters."""
        rows = -(-self.product.m // self.plan.tile.block_m)
        columns = -(-self.product.n // self.plan.tile.block_n)
        along_rows, along_columns = self.plan.copies.pair
        split_k = ceil_to(self.split_k, self.plan.in_cluster)
        return split_k, self.product.groups, ceil_to(rows, along_rows), ceil_to(columns, along_columns)

    def _tile(self, block: Index) -> list[Index]:
        """The split, the group, and the tiles along M and N of a block; the blocks of a cluster follow each other."""
        split_k, groups, rows, columns = self.grid
        pair, in_cluster = self.plan.copies.pair, self.plan.in_cluster
        extents = (split_k // in_cluster, groups, rows // pair[0], columns // pair[1], in_cluster, *pair)
        outer, group, i, j, split, *within = writing.unflatten(block, extents)
        return [outer * in_cluster + split, group, i * pair[0] + within[0], j * pair[1] + within[1]]

    @property
    def rounds_first(self) -> bool:
        """Whether sums are rounded before they go to shared memory: to 16 bits, if nothing more is added to them."""
        lanes = self.results.lanes * self.plan.units.item == VECTOR_BYTES
        return self.plan.units.item == 2 and lanes and self.partial is None and self.plan.in_cluster == 1

    @property
    def stride(self) -> int:
        """Elements between rows of sums in shared memory."""
        in_vectors = self.partial is not None or self.results.by_columns
        return self.plan.tile.block_n + (RESULT_PAD if in_vectors else 1)

    @property
    def words(self) -> int:
        """Shared memory of a block, in words: for stages and later for the sums, and for barriers."""
        barriers = 2 * self.plan.stages * BARRIER if self.plan.copies.by_tma else 0
        return self._barriers + barriers

    @property
    def _barriers(self) -> int:
        """The word at which the barriers begin: behind the stages, and behind the sums."""
        sums = self.plan.tile.block_m * self.stride // (2 if self.rounds_first else 1)
        return max(self.plan.stages * sum(tile.words for tile in self.tiles), sums)

    @cached_property
    def tma_tiles(self) -> list[TmaTiles]:
        """A's and B's tiles if TMA copies them, otherwise none."""
        if not self.plan.copies.by_tma:
            return []
        a, b = self.tiles
        assert isinstance(a, SwizzledTile) and isinstance(b, SwizzledTile)
        each = zip(self.operands, (0, 1), (a, b), self.plan.copies.shared)
        return [TmaTiles(self.product, operand, i, tile, shared) for operand, i, tile, shared in each]

    @property
    def count(self) -> int:
        """Blocks of the kernel."""
        return prod(self.grid)

    def body(self, words: tirx.Buffer, registers: Registers, block: Index, thread: Index) -> tirx.Stmt:
        """What a thread of a block does."""
        split, group, i, j = self._tile(block)
        row, column = i * self.plan.tile.block_m, j * self.plan.tile.block_n
        length = self.steps * self.plan.block_k
        begin, all_k = split * length, number(self.product.k)
        end = all_k if self.grid[0] == 1 else tirx.min(begin + length, all_k)
        place = TileOrigin(group, row, column, begin, end)
        cluster = Cluster(self.plan.in_cluster, self.plan.copies.blocks, block % self.cluster)
        pipeline = self._pipeline(words, place, cluster, thread)
        sync = clusters.sync if self.plan.in_cluster > 1 else instructions.barrier
        sums, declared = writing.view(words, str(self.results.out.dtype)) if self.rounds_first else (words, None)
        total = self.units.sum(words, registers, pipeline, self.steps, thread)
        return writing.seq(
            pipeline.begin(),
            self._work(thread, writing.seq(writing.clear(registers[0]), *total), pipeline.produce()),
            pipeline.end(),
            instructions.barrier(),
            declared,
            self._work(thread, self.units.store_sums(registers, sums, self.stride, thread)),
            sync(),
            self._work(thread, self._write(sums, split, (group, row, column), cluster, thread)),
            sync() if self.plan.in_cluster > 1 else None,
        )

    def _work(self, thread: Index, work: tirx.Stmt, others: tirx.Stmt | None = None) -> tirx.Stmt:
        """`work` for the threads that multiply, and `others` for the producer warp, if there is one."""
        return tirx.IfThenElse(thread < self.mma_threads, work, others) if self.mma_threads < self.threads else work

    def _pipeline(self, words: tirx.Buffer, place: TileOrigin, cluster: Cluster, thread: Index) -> Pipeline:
        """The pipeline that copies the operands of the tile at `place`."""
        a, b = self.tiles

        def at(step: Index) -> TileOrigin:
            return replace(place, k=place.k + step * self.plan.block_k)

        if self.tma_tiles:
            return self._tma_pipeline(words, at, cluster, thread)
        copiers = [
            Copier(self.product, operand, i, tile, self.threads, self.plan.copies is Copies.CACHED and i == 0)
            for i, (operand, tile) in enumerate(zip(self.operands, self.tiles))
        ]

        def fill(step: Index) -> tirx.Stmt:
            shared = [pair for pair in zip(copiers, pipeline.begins(step)) if pair[0].tile.words]
            return writing.seq(*(copier.copy(words, begin, at(step), thread) for copier, begin in shared))

        def vector(step: Index, row: Index, k: Index) -> tuple[Index, Index]:
            return copiers[0].source(at(step), row, k)

        pipeline = Pipeline(self.plan.stages, (a.words, b.words), fill, vector=vector)
        return pipeline

    def _tma_pipeline(
        self, words: tirx.Buffer, at: Callable[[Index], TileOrigin], cluster: Cluster, thread: Index
    ) -> TmaPipeline:
        def fill(step: Index) -> tirx.Stmt:
            barrier = pipeline.full(step)
            pairs = zip(self.tma_tiles, pipeline.begins(step))
            return writing.seq(
                *(tma_tiles.copy(words, begin, at(step), barrier, cluster) for tma_tiles, begin in pairs)
            )

        a, b = self.tiles
        stages, tiles = self.plan.stages, (a.words, b.words)
        pipeline = TmaPipeline(
            stages, tiles, fill, words, self._barriers, self.steps, thread, self.mma_threads, cluster
        )
        return pipeline

    def _write(
        self, sums: tirx.Buffer, split: Index, first: tuple[Index, Index, Index], cluster: Cluster, thread: Index
    ) -> tirx.Stmt:
        tile = epilogue.SumTile(sums, self.stride, self.plan.tile.block_m, self.plan.tile.block_n, first, cluster)
        if self.partial is None:
            return epilogue.write_tile(self.results, tile, thread, self.mma_threads)
        return epilogue.write_partial(
            self.product, self.partial, split // self.plan.in_cluster, tile, thread, self.mma_threads
        )


def kernel(blocks: Sequence[ThreadBlock]) -> tirx.Stmt:
    """One kernel for several products with the same plan: those of a data gradient's output phases. Blocks of the first
    products start first, since they have the longest sums."""
    words = writing.memory("words", (max(each.words for each in blocks),), ACCUMULATOR, "shared.dyn", ALIGNMENT)
    registers = blocks[0].units.registers()

    def body(block: Index, thread: Index) -> tirx.Stmt:
        begin = sum(each.count for each in blocks[:-1])
        statement = blocks[-1].body(words, registers, block - begin, thread)
        for each in reversed(blocks[:-1]):
            end, begin = begin, begin - each.count
            statement = tirx.IfThenElse(block < end, each.body(words, registers, block - begin, thread), statement)
        return writing.seq(writing.allocate(words, *registers), statement)

    return writing.kernel(sum(each.count for each in blocks), blocks[0].threads, body)
