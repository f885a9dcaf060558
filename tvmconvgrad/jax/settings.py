"""The arguments of `enable`, checked. They hold for the whole process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvmconvgrad.frontends.algorithms import parse_algorithm, target_of
from tvmconvgrad.frontends.layers import check_layers
from tvmconvgrad.jax.problems.convolution import Convolution
from tvmconvgrad.machines.targets import Target

Layers = Callable[[Convolution], bool]


@dataclass(frozen=True, eq=False)
class Settings:
    """Which convolutions our kernels compute, and by which algorithms."""

    algorithm: str
    layers: Layers | None

    @property
    def target(self) -> Target | None:
        """The target of all kernels. None: any target that a bundle in use has for this CPU, else this very CPU."""
        return target_of(self.algorithm)


def parse_settings(algorithm: str, layers: Layers | None) -> Settings:
    """Check the arguments of `enable`. Raises TypeError or ValueError, which names the argument."""
    check_layers(layers)
    return Settings(parse_algorithm(algorithm), layers)
