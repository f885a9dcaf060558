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

DEVICES = "cpu", "cuda"
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True)
class Settings:
    """Which convolutions our kernels may compute, and by which algorithms."""

    algorithm: str
    dtypes: frozenset[torch.dtype]
    devices: frozenset[str]
    """Of DEVICES."""
    layers: Callable[[Convolution], bool] | None

    def allows(self, conv: Convolution) -> bool:
        """What the user's `layers` says of a convolution. ValueError or TypeError as for `is_allowed`."""
        return is_allowed(self.layers, conv)


def parse_settings(
    algorithm: str,
    dtypes: Iterable[torch.dtype] | None,
    devices: Iterable[str],
    layers: Callable[[Convolution], bool] | None,
) -> Settings:
    """Check the arguments of `enable`. Raises TypeError or ValueError, which names the argument."""
    named = frozenset(DTYPES) if dtypes is None else frozenset(map(_dtype, _listed("dtypes", dtypes, "torch.dtype")))
    if not named:
        raise ValueError("dtypes: is empty, expected at least one of torch.float32, torch.bfloat16, torch.float16")
    where = frozenset(map(_device, _listed("devices", devices, "str")))
    if not where:
        raise ValueError("devices: is empty, expected 'cpu', 'cuda' or both")
    check_layers(layers)
    return Settings(parse_algorithm(algorithm), named, where, layers)


def _listed(name: str, values: Any, of: str) -> list[Any]:
    if isinstance(values, (str, torch.dtype)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: {show(values)} is not a sequence of {of}")
    return list(values)


def _device(device: Any) -> str:
    if not isinstance(device, str):
        raise TypeError(f"devices: {show(device)} is not a str")
    if device not in DEVICES:
        raise ValueError(f"devices: {show(device)} is unknown, expected 'cpu' or 'cuda'")
    return device


def _dtype(dtype: Any) -> torch.dtype:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtypes: {show(dtype)} is not a torch.dtype")
    if dtype not in DTYPES:
        raise ValueError(f"dtypes: {dtype} is not supported, expected torch.float32, torch.bfloat16 or torch.float16")
    return dtype
