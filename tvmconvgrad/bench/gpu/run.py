"""A bundle's kernels on a GPU: each checked, then timed beside cuDNN in both of PyTorch's memory formats and a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from tvmconvgrad.bench.gpu.checking import Checked, Tensors, check, laid_out, make_inputs
from tvmconvgrad.bench.gpu.timing import Clock, Work, time_all
from tvmconvgrad.bench.job import Job, Refused
from tvmconvgrad.bench.peers.pytorch import PyTorch
from tvmconvgrad.bench.results.measurement import Measurement
from tvmconvgrad.bench.variants import OURS
from tvmconvgrad.bundles.load import Bundle
from tvmconvgrad.bundles.manifest import BundledKernel
from tvmconvgrad.bundles.missing import layer_of
from tvmconvgrad.machines.targets import TF32
from tvmconvgrad.runtime.kernel import Kernel

FORMATS = {"cuDNN NHWC": "channels_last", "cuDNN NCHW": "contiguous"}
COPY = "copy"
"""Beside them, as what memory allows: it reads half of the bytes of a gradient's tensors, and writes the other half."""


@dataclass(frozen=True)
class Options:
    """How to measure. `deadline` is on time.monotonic's clock: whatever is left then is left out."""

    device: str
    rounds: int
    flushed: bool
    seed: int = 0
    checks_only: bool = False
    deadline: float = float("inf")


class Result(NamedTuple):
    """A gradient that was checked, and measured if it was right."""

    name: str
    multiplied: str
    """The type of its products, "tf32" among them."""
    checked: Checked
    measured: Measurement | None


def run(bundle: Bundle, chosen: Callable[[str], bool], options: Options) -> Iterator[Result]:
    """Check and measure the kernels of a bundle whose names are `chosen`, in their order."""
    clock = Clock(options.device, options.flushed)
    for entry in bundle.manifest.kernels:
        if chosen(entry.name) and time.monotonic() < options.deadline:
            yield _one(bundle, entry, clock, options)


def _one(bundle: Bundle, entry: BundledKernel, clock: Clock, options: Options) -> Result:
    kernel, job = bundle[entry.name], Job.of(entry.problem)
    multiplied = bundle.target.multiplied(entry.dtype)
    torch.backends.cudnn.allow_tf32 = multiplied == TF32
    tensors = make_inputs(job, options.device, options.seed)
    checked = check(kernel, job, tensors, options.device, entry.problem.flops)
    if checked.fault is not None or options.checks_only:
        return Result(entry.name, multiplied, checked, None)
    works, refusals = _works(kernel, job, tensors, options.device)
    works[COPY] = _copy(entry.problem.tensor_bytes // 2, options.device)
    rounds = time_all(works, clock, options.rounds)
    return Result(entry.name, multiplied, checked, _measurement(bundle.manifest.name, entry, kernel, rounds, refusals))


def _works(kernel: Kernel, job: Job, tensors: Tensors, device: str) -> tuple[dict[str, Work], dict[str, str]]:
    """What each implementation does in a call, and why one does not take the gradient."""
    first, second = (laid_out(job, role, tensors[role]) for role in job.inputs)
    out = kernel(first, second)
    works: dict[str, Work] = {OURS: lambda: kernel(first, second, out=out)}
    refusals: dict[str, str] = {}
    for label, memory_format in FORMATS.items():
        try:
            peer = PyTorch(job, tensors, memory_format, device)
            peer.run()
            works[label] = peer.run
        except (Refused, RuntimeError) as reason:  # cuDNN has no algorithm
            refusals[label] = str(reason).partition("\n")[0]
    return works, refusals


def _copy(count: int, device: str) -> Work:
    source, target = (torch.zeros(count, dtype=torch.int8, device=device) for _ in range(2))
    return lambda: target.copy_(source)


def _measurement(
    suite: str, entry: BundledKernel, kernel: Kernel, rounds: Mapping[str, Any], refusals: Mapping[str, str]
) -> Measurement:
    layer = layer_of(entry.problem)
    assert layer is not None, "a bundle is made of layers' gradients"
    return Measurement.of(
        suite,
        replace(layer, name=entry.layer),
        entry.problem,
        workspace_bytes=kernel.workspace_bytes,
        schedule=kernel.schedule,
        rounds=rounds,
        refusals=refusals,
    )


def device_name(device: str) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else device
