"""What a worker can run: our kernels, oneDNN, PyTorch, the definition. Libraries are imported when a worker starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tvmconvgrad.bench.job import Array, Job, Refused, Tensors
from tvmconvgrad.bench.variants import Variant


class Prepared(Protocol):
    """One gradient that is ready to run, whatever computes it."""

    facts: dict[str, Any]

    def run(self) -> None:
        """Compute it once."""

    def result(self) -> Array:
        """The latest result, in the canonical layout."""

    def release(self) -> None:
        """Give back what it holds."""


class Implementation(NamedTuple):
    """How a variant prepares a job, for which it may raise Refused, and its versions by name."""

    prepare: Callable[[Job, Tensors], Prepared]
    versions: dict[str, str]


def start(variant: Variant, threads: int) -> Implementation:
    """Load what a variant needs into this process, which may use one CPU for each thread."""
    found = {"ours": _ours, "onednn": _onednn, "torch": _torch, "definition": _definition}
    return found[variant.kind](variant, threads)


def _ours(variant: Variant, threads: int) -> Implementation:
    from tvmconvgrad.bench.workers.ours import Ours
    from tvmconvgrad.runtime.threads import set_num_threads
    from tvmconvgrad.version import __version__

    set_num_threads(threads)
    versions = {"tvmconvgrad": __version__}
    return Implementation(
        lambda job, tensors: Ours(job, tensors, variant.target, variant.schedule, variant.tuned), versions
    )


def _onednn(variant: Variant, threads: int) -> Implementation:
    from tvmconvgrad.bench.peers import onednn

    def prepare(job: Job, tensors: Tensors) -> Prepared:
        plain = variant.mode == "plain"
        try:
            if plain and not onednn.graph_lacks(job):
                return onednn.GraphOperator(job, tensors)
            return onednn.Primitive(job, tensors, plain=plain)
        except onednn.OneDNNError as error:
            raise Refused(str(error)) from error

    return Implementation(prepare, {"oneDNN": onednn.version()})  # it takes one thread for each CPU


def _torch(variant: Variant, threads: int) -> Implementation:
    import torch

    from tvmconvgrad.bench.peers.pytorch import PyTorch

    torch.set_num_threads(threads)
    return Implementation(lambda job, tensors: PyTorch(job, tensors, variant.mode), {"PyTorch": torch.__version__})


def _definition(_variant: Variant, _threads: int) -> Implementation:
    from tvmconvgrad.bench.workers.definition import Definition

    return Implementation(Definition, {})
