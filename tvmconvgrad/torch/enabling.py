"""`enable`, `disable` and `enabled`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from tvmconvgrad.bundles import registry
from tvmconvgrad.cache import sources
from tvmconvgrad.common.warnings import say
from tvmconvgrad.frontends.algorithms import target_of
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.runtime import tensors, threads
from tvmconvgrad.torch.dispatch.override import OverrideWarning, others
from tvmconvgrad.torch.layers import memory_formats
from tvmconvgrad.torch.layers.convolution import Convolution
from tvmconvgrad.torch.settings import Settings, parse_settings
from tvmconvgrad.torch.state import state
from tvmconvgrad.torch.steps import findings

Layers = Callable[[Convolution], bool]


def enable(
    algorithm: str = "direct",
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    devices: Iterable[str] = ("cpu",),
    layers: Layers | None = None,
) -> None:
    """Let this package's kernels compute the convolutions of this process, and their gradients, where they are faster.

    This holds for all threads, and for all that calls `aten::convolution` and `aten::convolution_backward` on CPUs:
    modules, functions, autograd, `torch.func`, `torch.compile`. Results differ from PyTorch's by rounding.

    `algorithm` is "direct", or "auto", which on CPUs also allows algorithms with fewer products, such as Winograd's,
    that round otherwise. `dtypes` chooses among torch.float32, torch.bfloat16 and torch.float16, by default all of
    them; PyTorch computes the others. `devices` chooses "cpu", "cuda" or both: on NVIDIA GPUs the Python code of a call
    often takes longer than the kernel saves. Calls on other devices are passed on at once. `layers` is called with the
    Convolution of each new layer, in the thread that computes it; PyTorch computes the layers for which it returns
    False. If it raises, or returns no bool, the layer's call raises ValueError or TypeError, which names `layers` and
    the layer. A second call of `enable` replaces the first.

    This is safe at any time, also while other threads compute. The import of this package changes PyTorch's dispatcher,
    which is safe only while no other thread computes a convolution.

    Warns with an OverrideWarning if somebody else overrides the same operators. Raises TypeError or ValueError for a
    wrong argument, ValueError if TVMCONVGRAD_NUM_THREADS is no number or TVMCONVGRAD_BUILD not one of its words, and
    ImportError if PyTorch is older than 2.6.
    """
    state.replace(_parsed(algorithm, dtypes, devices, layers))


def disable() -> None:
    """Let PyTorch compute everything again, also inside of `with enabled():`. Kernels stay in memory."""
    state.replace(None)


@contextmanager
def enabled(
    algorithm: str = "direct",
    *,
    dtypes: Iterable[torch.dtype] | None = None,
    devices: Iterable[str] = ("cpu",),
    layers: Layers | None = None,
) -> Iterator[None]:
    """A context in which `enable` holds, in all threads, with the same arguments and errors.

    After it the settings from before hold again. Contexts may be nested, and end in any order.
    """
    settings = _parsed(algorithm, dtypes, devices, layers)
    state.push(settings)
    try:
        yield
    finally:
        state.remove(settings)


def _parsed(
    algorithm: str, dtypes: Iterable[torch.dtype] | None, devices: Iterable[str], layers: Layers | None
) -> Settings:
    settings = parse_settings(algorithm, dtypes, devices, layers)
    memory_formats.check_version()
    tensors.meet_torch(torch)  # so that kernels use no more threads than PyTorch
    # What is wrong with variables and findings is said here, and what takes long is read here, not in a step.
    threads.get_num_threads()
    registry.is_building_allowed()
    findings.load()
    if "cpu" in settings.devices:
        sources.digest(*parse_target(target_of(algorithm)).backend.sources)
    for other in others():
        say(other, OverrideWarning)
    return settings
