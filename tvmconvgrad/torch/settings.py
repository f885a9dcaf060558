"""The arguments of `enable`, checked.

They hold for the whole process, not for a thread: autograd computes gradients in threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tvmconvgrad.frontends.algorithms import parse_algorithm
from tvmconvgrad.frontends.layers import check_layers, is_allowed
from tvmconvgrad.spec.values import show
from tvmconvgrad.torch.layers.convolution import Convolution

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True)
class Settings:
    """Which convolutions our kernels may compute, and by which algorithms."""

    algorithm: str
    dtypes: frozenset[torch.dtype]
    layers: Callable[[Convolution], bool] | None

    def allows(self, conv: Convolution) -> bool:
        """What the user's `layers` says of a convolution. ValueError or TypeError as for `is_allowed`."""
        return is_allowed(self.layers, conv)


def parse_settings(
    algorithm: str, dtypes: Iterable[torch.dtype] | None, layers: Callable[[Convolution], bool] | None
) -> Settings:
    """Check the arguments of `enable`. Raises TypeError or ValueError, which names the argument."""
    named = frozenset(DTYPES) if dtypes is None else frozenset(_dtype(dtype) for dtype in _listed(dtypes))
    if not named:
        raise ValueError("dtypes: is empty, expected at least one of torch.float32, torch.bfloat16, torch.float16")
    check_layers(layers)
    return Settings(parse_algorithm(algorithm), named, layers)


def _listed(dtypes: Any) -> list[Any]:
    if isinstance(dtypes, (str, torch.dtype)) or not isinstance(dtypes, Iterable):
        raise TypeError(f"dtypes: {show(dtypes)} is not a sequence of torch.dtype")
    return list(dtypes)


def _dtype(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtypes: {show(dtype)} is not a torch.dtype")
    if dtype not in DTYPES:
        raise ValueError(f"dtypes: {dtype} is not supported, expected torch.float32, torch.bfloat16 or torch.float16")
    return dtype
