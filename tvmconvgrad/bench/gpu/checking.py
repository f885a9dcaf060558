"""Whether a kernel is right: its result on random numbers beside PyTorch's in f64, and the same bits on every run."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.peers.pytorch import DTYPES
from tvmconvgrad.runtime.kernel import Kernel

BOUNDS = {"f32": 1e-5, "tf32": 1e-3, "f16": 1e-2, "bf16": 1e-2}
"""The largest relative error, the norm of the difference over that of the result, by what is multiplied."""
_MOST_FLOPS = 1e11
"""Of a sum that is taken in f64; a larger one is taken in f32."""
_RUNS = 3


class Checked(NamedTuple):
    """What was found: the relative error, the type that it was found in, and whether all runs gave the same bits."""

    error: float
    exact_in: str
    same_bits: bool
    bound: float

    @property
    def fault(self) -> str | None:
        """What is wrong; None where nothing is."""
        if not self.error <= self.bound:  # nor is it if it is NaN
            return f"its relative error is {self.error:.2e}, above {self.bound:.0e}"
        return None if self.same_bits else "its bits differ from run to run"


Tensors = dict[str, Any]


def make_inputs(job: Job, device: str, seed: int) -> Tensors:
    """Normal random numbers for the two inputs by their roles, in the canonical layout and the job's type."""
    random = torch.Generator(device).manual_seed(seed)
    shapes = {role: job.shapes[role] for role in job.inputs}
    return {
        role: torch.randn(shape, generator=random, device=device).to(DTYPES[job.dtype])
        for role, shape in shapes.items()
    }


def laid_out(job: Job, role: str, canonical: Any) -> Any:
    """A canonical tensor in the job's layout, dense."""
    return canonical.permute(job.axes(role)).contiguous()


def check(kernel: Kernel, job: Job, tensors: Tensors, device: str, flops: int) -> Checked:
    """Run a kernel a few times into memory that holds NaN, and compare."""
    first, second = (laid_out(job, role, tensors[role]) for role in job.inputs)
    results = []
    for _ in range(_RUNS):
        out = torch.full(job.shape(job.result), float("nan"), dtype=DTYPES[job.dtype], device=device)
        results.append(kernel(first, second, out=out))
    dtype = "f64" if flops <= _MOST_FLOPS else "f32"
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        exact = laid_out(job, job.result, by_pytorch(job, tensors, DTYPES[dtype]))
    same = all(_bits(result).equal(_bits(results[0])) for result in results[1:])
    bound = BOUNDS[kernel.target.multiplied(job.dtype)]
    return Checked(relative_error(results[0], exact), dtype, same, bound)


def by_pytorch(job: Job, tensors: Tensors, dtype: torch.dtype) -> Any:
    """The gradient in this type, in the canonical layout, by PyTorch's convolution without pads.

    x is extended by the pads, and cut where no tap reaches; its gradient is brought back to its size.
    """
    strides, dilations, begin = (list(job.attributes[name]) for name in ("strides", "dilations", "pads_begin"))
    groups = job.attributes["groups"]
    x, y, kernel = (job.shapes[role][2:] for role in ("x", "y", "w"))
    reach = [s * (n - 1) + (k - 1) * d + 1 for s, n, k, d in zip(strides, y, kernel, dilations)]
    ends = [extent - pad - size for extent, pad, size in zip(reach, begin, x)]
    pads = [pad for pair in zip(reversed(begin), reversed(ends)) for pad in pair]
    given = {role: tensor.to(dtype) for role, tensor in tensors.items()}
    anything = next(iter(given.values()))
    big = F.pad(given["x"], pads) if "x" in given else anything.new_empty((*job.shapes["x"][:2], *reach))
    if job.result == "y":
        return torch.ops.aten.convolution(big, given["w"], None, strides, [0], dilations, False, [0], groups)
    weights = given.get("w", anything.new_empty(job.shapes["w"]))
    mask = [job.result == "x", job.result == "w", False]
    options = (None, strides, [0] * job.rank, dilations, False, [0] * job.rank, groups, mask)
    found = torch.ops.aten.convolution_backward(given["y"], big, weights, *options)
    return found[1] if job.result == "w" else F.pad(found[0], [-pad for pad in pads])


def relative_error(got: Any, exact: Any) -> float:
    """The norm of the difference over that of `exact`; NaN where either has one."""
    exact = exact.double()
    norm, difference = float(exact.norm()), float((got.double() - exact).norm())
    return difference / norm if norm else difference


def _bits(tensor: Any) -> Any:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
