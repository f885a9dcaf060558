"""What the rules of Winograd's algorithm share: each has a planner for every size of tiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, Protocol, TypeVar

from tvmconvgrad.schedules.base import PlannedRule, Planner
from tvmconvgrad.schedules.decisions import Decisions
from tvmconvgrad.spec import Problem
from tvmconvgrad.te.winograd.axes import tile_products

WORTH = 1.36
"""Winograd's algorithm is taken if its cost, times this, is below that of direct sums. Of the suites' gradients in f32
for which the model promises little more, direct sums took 1.03 to 1.17 times as long (WaveNet's dilated1 and causal,
DeepLab's aspp_dilated6, VGG-19's conv5_1). Of those for which it promises less, 3D U-Net's down4_2 took 1.7 times as
long as direct sums, and the others 0.81 to 0.95 times (an Intel Xeon with AMX)."""


class TilesPlanner(Planner[Any], Protocol):
    """What plans a problem for tiles of one size."""

    @property
    def products(self) -> tuple[int, ...]:
        """Products of a tile along each tiled axis."""


AnyPlanner = TypeVar("AnyPlanner", bound=TilesPlanner)


class WinogradRule(PlannedRule[AnyPlanner]):
    """A rule whose planners differ by the size of tiles."""

    @abstractmethod
    def planner(self, problem: Problem, products: tuple[int, ...]) -> AnyPlanner:
        """For tiles of one size."""

    def planners(self, problem: Problem) -> Sequence[AnyPlanner]:
        """One for each size of tiles."""
        return [self.planner(problem, products) for products in tile_products(problem)]

    def cost(self, problem: Problem) -> float | None:
        """As of PlannedRule, times `WORTH`."""
        cost = super().cost(problem)
        return None if cost is None else WORTH * cost

    def choose(self, planners: Sequence[AnyPlanner], decisions: Decisions) -> AnyPlanner:
        """The planner of the size of tiles that the model or a search draws."""
        by_products = {prod(planner.products): planner for planner in planners}
        best = min(by_products, key=lambda products: by_products[products].least_cost())
        return by_products[decisions.draw("products", list(by_products), best)]
