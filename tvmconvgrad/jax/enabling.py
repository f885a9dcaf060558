"""`enable`, `disable` and `enabled`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvmconvgrad.bundles import registry
from tvmconvgrad.jax.override import override
from tvmconvgrad.jax.settings import Layers, Settings, parse_settings
from tvmconvgrad.runtime import threads


def enable(algorithm: str = "direct", *, layers: Layers | None = None) -> None:
    """Let this package's kernels compute the convolutions of this process on CPUs, and their gradients.

    This holds for all that JAX compiles from now on, in all threads. What it has compiled before is forgotten
    (`jax.clear_caches`). Results differ from XLA's by rounding.

    `algorithm` is "direct", or "auto", which also allows algorithms with fewer products, such as Winograd's, that round
    otherwise. `layers` is called with the Convolution of each operation while JAX lowers it; XLA computes those for
    which it returns False. If it raises, or returns no bool, the compilation raises ValueError or TypeError that names
    `layers` and the convolution. A second call of `enable` replaces the first.

    Raises TypeError or ValueError for a wrong argument, ValueError if TVMCONVGRAD_NUM_THREADS is no number or
    TVMCONVGRAD_BUILD not one of its words, and MissingLinker if there is no C compiler.
    """
    override.replace(_parsed(algorithm, layers))


def disable() -> None:
    """Let XLA compute everything again, also inside of `with enabled():`. JAX forgets what it has compiled."""
    override.replace(None)


@contextmanager
def enabled(algorithm: str = "direct", *, layers: Layers | None = None) -> Iterator[None]:
    """A context in which `enable` holds, in all threads, with the same arguments and errors.

    After it the settings from before hold again. Contexts may be nested, and end in any order. JAX forgets what it has
    compiled at the begin and at the end.
    """
    settings = _parsed(algorithm, layers)
    override.push(settings)
    try:
        yield
    finally:
        override.remove(settings)


def _parsed(algorithm: str, layers: Layers | None) -> Settings:
    settings = parse_settings(algorithm, layers)
    threads.get_num_threads()  # what is wrong with variables is said here and not while a program is compiled
    registry.is_building_allowed()
    return settings
