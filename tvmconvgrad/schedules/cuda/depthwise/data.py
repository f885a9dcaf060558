"""The kernel of depthwise data gradients and forward convolutions: see schedules/cuda/depthwise/rule.py."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx

from tvmconvgrad.schedules.cuda import writing
from tvmconvgrad.schedules.cuda.depthwise.operands import SPACE, Lanes, ReadSet, loads_ahead, multiply_add
from tvmconvgrad.schedules.cuda.depthwise.plan import DepthwisePlan
from tvmconvgrad.schedules.cuda.expression_stages import Stage
from tvmconvgrad.schedules.cuda.results import Results
from tvmconvgrad.te.tensors import ACCUMULATOR, Index


@dataclass(frozen=True)
class Phase:
    """One sum of the expression: a phase of a data gradient."""

    results: Results
    data: Lanes
    filter: Lanes

    @property
    def total(self) -> Stage:
        """The sum."""
        return self.data.total

    @property
    def space(self) -> tuple[int, ...]:
        """Its positions along each axis."""
        return self.total.shape[2:-1]

    @property
    def taps(self) -> tuple[int, ...]:
        """Its taps along each axis."""
        return self.total.extents[len(self.total.variables) :]


@dataclass(frozen=True)
class Output:
    """One element of a sum, of the first of a thread's groups."""

    phase: Phase
    kind: tuple[int, int]
    """The number of the phase and of the channel: outputs of a kind share weights."""
    index: tuple[Index, ...]


@dataclass(frozen=True)
class PositionsKernel:
    """The kernel of some phases: all of a data gradient, or one."""

    phases: Sequence[Phase]
    plan: DepthwisePlan

    @property
    def _extents(self) -> tuple[int, ...]:
        """Work for threads: (n, vectors of groups, *tiles, channel). With all taps, a thread has all channels, too."""
        n, groups, *_, channels = self.phases[0].total.shape
        space = [max(extents) for extents in zip(*(phase.space for phase in self.phases))]
        return (n, groups // self.plan.lanes, *self.plan.tiles(space), 1 if self.plan.whole else channels)

    def kernel(self) -> tirx.Stmt:
        """The kernel: a thread for each tile and vector, neighbours along memory."""
        extents = self._extents
        n, vectors, *space, channel = range(len(extents))
        by_groups = self.phases[0].results.product.problem.data_format == "NXC"
        order = [n, channel, *space, vectors] if by_groups else [n, vectors, channel, *space]

        def tile(flat: Index) -> tirx.Stmt:
            along = writing.unflatten(flat, [extents[axis] for axis in order])
            n, vector, *space, channel = (along[order.index(axis)] for axis in range(len(extents)))
            return self._sums(self._outputs(n, vector * self.plan.lanes, space, channel))

        kernel = writing.elementwise(prod(extents), tile)
        assert kernel is not None
        return kernel

    def _outputs(self, n: Index, group: Index, space: Sequence[Index], channel: Index) -> list[Output]:
        """What a thread computes."""
        return [
            Output(phase, (number, own), (n, group, *position, writing.number(own) if self.plan.whole else channel))
            for number, phase in enumerate(self.phases)
            for own in range(phase.total.shape[-1] if self.plan.whole else 1)
            for position in self.plan.positions(space)
        ]

    def _sums(self, outputs: Sequence[Output]) -> tirx.Stmt:
        """All sums of a thread, and their writes: without loops each as soon as it has all products."""
        axes = [] if self.plan.whole else [axis for axis in range(len(self.plan.tile)) if axis != self.plan.axis]
        loops = {axis: tirx.Var(f"tap_{axis}", writing.INDEX) for axis in axes}
        sums = writing.memory("sums", (len(outputs) * self.plan.lanes,), ACCUMULATOR, "local")
        writes = [self._write(output, i, sums) for i, output in enumerate(outputs)]
        body = _Products(outputs, loops, self.plan.lanes).add(sums, [] if loops else writes)
        for axis, var in reversed(loops.items()):
            body = writing.loop_of(var, self.phases[0].taps[axis], body)
        return writing.seq(writing.allocate(sums), writing.clear(sums), body, *(writes if loops else []))

    def _write(self, output: Output, i: int, sums: tirx.Buffer) -> tirx.Stmt:
        """Write an output, if there is such a position."""
        lanes = self.plan.lanes
        write = output.phase.results.write_at(output.index, lambda lane: writing.load(sums, i * lanes + lane), lanes)
        return writing.when(self.plan.inside(output.index[2:-1], output.phase.space, self._extents[2:-1]), write)


@dataclass(frozen=True)
class _Products:
    """What outputs add up of all taps but those of loops."""

    outputs: Sequence[Output]
    loops: Mapping[int, tirx.Var]
    lanes: int

    def add(self, sums: tirx.Buffer, writes: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """Load what the outputs read, add the products row by row, and write each output after its last one."""
        reads, weights = self._reads, self._weights
        data, filters = self.outputs[0].phase.data, self.outputs[0].phase.filter
        read_set = ReadSet.of(reads, range(SPACE, len(data.stage.shape)))
        read, kept = data.raw("read_set", len(read_set.first)), filters.raw("weights", len(weights))
        places = {key: i for i, key in enumerate(weights)}
        loads, work = read_set.empty(), read_set.empty()
        for i, (phase, at) in enumerate(weights.values()):
            loads[0].append(phase.filter.load_vector(at, kept, i * self.lanes))
        for place, (key, row) in enumerate(zip(read_set.first, read_set.rows)):
            loads[row].append(data.load_vector_inside(reads[key], read, place * self.lanes))
        for (i, tap), place in read_set.places.items():
            factors = (read, place), (kept, places[self.outputs[i].kind, tap])
            work[read_set.rows[place]].append(multiply_add(sums, i, factors, self.lanes))
        for i, write in enumerate(writes):
            work[max(read_set.rows[place] for (own, _), place in read_set.places.items() if own == i)].append(write)
        registers = writing.seq(writing.allocate(read, kept), writing.clear(read), writing.clear(kept))
        return writing.seq(registers, *loads_ahead(loads, work))

    def _taps(self, phase: Phase) -> list[tuple[Index, ...]]:
        """The taps of a phase, those of loops as they are in these."""
        axes = (
            [self.loops[axis]] if axis in self.loops else [writing.number(tap) for tap in range(extent)]
            for axis, extent in enumerate(phase.taps)
        )
        return list(itertools.product(*axes))

    @property
    def _reads(self) -> dict[tuple[int, int], list[Index]]:
        """Where an output reads the stage of data with a tap, by their numbers."""
        return {
            (i, tap): output.phase.data.where(output.index, at)
            for i, output in enumerate(self.outputs)
            for tap, at in enumerate(self._taps(output.phase))
        }

    @property
    def _weights(self) -> dict[tuple[tuple[int, int], int], tuple[Phase, list[Index]]]:
        """What outputs of a kind are multiplied with, for each tap: whose filter's, and where its stage has it."""
        kinds = {output.kind: output for output in reversed(self.outputs)}
        return {
            (kind, tap): (output.phase, output.phase.filter.where(output.index, at))
            for kind, output in kinds.items()
            for tap, at in enumerate(self._taps(output.phase))
        }
