"""The argument `algorithm` of `enable`."""

from __future__ import annotations

import functools

from tvmconvgrad.machines.targets import ALGORITHMS, DIRECT, Target, parse_target
from tvmconvgrad.spec.values import parse_choice


def parse_algorithm(algorithm: str) -> str:
    """Check the argument. Raises TypeError or ValueError, which names it."""
    return parse_choice("algorithm", algorithm, ALGORITHMS)


@functools.lru_cache(maxsize=len(ALGORITHMS))  # a training's first step asks for 100 kernels
def target_of(algorithm: str) -> Target | None:
    """The target of all kernels. None: any target that a bundle in use has for this CPU, else this very CPU."""
    return None if algorithm == DIRECT else parse_target(f"llvm -mcpu=native -algorithm={algorithm}")
