"""What the planners of Winograd's algorithm share: there is one for each size of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, Generic, Protocol, TypeVar

from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.schedules.base import Planner
from tvmconvgrad.schedules.cpu.winograd.sizes import WinogradSizes
from tvmconvgrad.schedules.cpu.winograd.tiles import tile_products
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Problem

WORTH = 1.36
"""Winograd's algorithm is taken if its cost, times this, is below that of direct sums. Of the suites' gradients in f32
for which the model promises little more, direct sums took 1.03 to 1.17 times as long (WaveNet's dilated1 and causal,
DeepLab's aspp_dilated6, VGG-19's conv5_1). Of those for which it promises less, 3D U-Net's down4_2 took 1.7 times as
long as direct sums, and the others 0.81 to 0.95 times (an Intel Xeon with AMX)."""


class SizePlanner(Planner[Any], Protocol):
    """What plans a problem for tiles of one size."""

    @property
    def products(self) -> tuple[int, ...]:
        """Products of a tile along each tiled axis."""


AnySizePlanner = TypeVar("AnySizePlanner", bound=SizePlanner)


@dataclass(frozen=True)
class WinogradPlanner(Generic[AnySizePlanner]):
    """The planners of a problem, one for each size of tiles, as one planner."""

    planners: tuple[AnySizePlanner, ...]

    @classmethod
    def of(
        cls, problem: Problem, planner: Callable[[tuple[int, ...]], AnySizePlanner]
    ) -> WinogradPlanner[AnySizePlanner]:
        """Those that take the problem, by what makes one for a size."""
        planners = map(planner, tile_products(problem))
        return cls(tuple(planner for planner in planners if planner.is_applicable()))

    def for_tiles(self, products: tuple[int, ...]) -> AnySizePlanner:
        """The one for tiles of a size."""
        return next(planner for planner in self.planners if planner.products == products)

    def is_applicable(self) -> bool:
        """Whether there is a size for the problem."""
        return bool(self.planners)

    def least_cost(self) -> float:
        """Cycles of one core, about, times `WORTH`."""
        return WORTH * min(planner.least_cost() for planner in self.planners)

    def plan(self, decisions: Decisions) -> Any:
        """The plan of the size that the model or a search draws. The numbers of products, by which sizes are drawn,
        all differ: `PRODUCTS` (tiles.py) has 4 x 6, and not 6 x 4, which has as many."""
        by_products = {prod(planner.products): planner for planner in self.planners}
        best = min(by_products, key=lambda products: by_products[products].least_cost())
        return by_products[decisions.draw("products", list(by_products), best)].plan(decisions)


@dataclass(frozen=True)
class WeightsSizePlanner:
    """What the planners of weights gradients have in common, each for tiles of one size."""

    machine: CpuMachine
    problem: Problem
    products: tuple[int, ...]
    """Products of a tile along each tiled axis."""

    def is_applicable(self) -> bool:
        """Every problem for which there are tiles of the size."""
        return True

    @cached_property
    def sizes(self) -> WinogradSizes:
        """The problem in tiles."""
        return WinogradSizes(self.machine, self.problem, self.products, (1,) * self.problem.geometry.rank)
