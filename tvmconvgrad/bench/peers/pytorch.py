"""PyTorch's convolution and convolution_backward, in either of its memory formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tvmconvgrad.bench.job import Array, Job, Refused

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
_CHANNELS_LAST = {1: torch.channels_last, 2: torch.channels_last, 3: torch.channels_last_3d}


class PyTorch:
    """One gradient or forward on PyTorch's tensors; each run allocates its result, since the function takes none.

    Refused for what the function cannot say: pads that differ at the two ends. One spatial axis, for which there is no
    channels_last, is then the second of two.
    """

    def __init__(self, job: Job, tensors: Mapping[str, Any], memory_format: str, device: str = "cpu") -> None:
        self._job, self._device = job, device
        self._as_2d = memory_format == "channels_last" and job.rank == 1
        self._layout = _CHANNELS_LAST[job.rank] if memory_format == "channels_last" else torch.contiguous_format
        given = {role: self._tensor(tensors[role]) for role in job.inputs}
        self._run = self._forward(given) if job.is_forward else self._gradient(given)
        self._result: Any = None
        self.facts: dict[str, Any] = {}

    def _forward(self, given: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        arguments = (*(given[role] for role in self._job.inputs), None, *self._options())
        return lambda: torch.ops.aten.convolution(*arguments)

    def _gradient(self, given: dict[str, torch.Tensor]) -> Callable[[], torch.Tensor]:
        job = self._job
        # the shape of what is asked for is read off a tensor, whose values are not
        given[job.result] = self._tensor(np.zeros(job.shapes[job.result], np.int8))
        source, gradient = ("y", "x") if job.transposed else ("x", "y")
        mask = (job.result == source, job.result == "w", False)
        arguments = (given[gradient], given[source], given["w"], None, *self._options(), mask)
        return lambda: torch.ops.aten.convolution_backward(*arguments)[mask.index(True)]

    def run(self) -> None:
        """Compute it once."""
        self._result = self._run()

    def result(self) -> Array:
        """The result in the canonical layout."""
        found: Array = self.value.to(torch.float32).numpy()
        return found

    @property
    def value(self) -> torch.Tensor:
        """The result in the canonical layout, as a tensor where it was computed."""
        found: torch.Tensor = self._result.contiguous().reshape(self._job.shapes[self._job.result])
        return found

    def release(self) -> None:
        """The tensors go with this object."""

    def _tensor(self, given: Array | torch.Tensor) -> torch.Tensor:
        tensor = given if isinstance(given, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(given))
        made = tensor.to(self._device, DTYPES[self._job.dtype])
        return (made.unsqueeze(2) if self._as_2d else made).contiguous(memory_format=self._layout)

    def _options(self) -> tuple[Any, ...]:
        """Strides, pads, dilations, whether transposed, output padding and groups."""
        job = self._job
        strides, dilations, pads = (list(job.attributes[name]) for name in ("strides", "dilations", "pads_begin"))
        x, y, kernel = (job.shapes[role][2:] for role in ("x", "y", "w"))
        axes = list(zip(x, y, kernel, strides, dilations, pads, strict=True))
        # with the same pads at both ends, elements of y that no window reaches
        rest = [size + 2 * p - s * (n - 1) - (k - 1) * d - 1 for size, n, k, s, d, p in axes]
        limits = [max(s, d) if job.transposed else s for s, d in zip(strides, dilations, strict=True)]
        if any(not 0 <= r < limit for r, limit in zip(rest, limits, strict=True)):
            raise Refused("pads differ at the two ends")
        padding = rest if job.transposed else [0] * job.rank
        if self._as_2d:
            strides, pads, dilations, padding = [1, *strides], [0, *pads], [1, *dilations], [0, *padding]
        return strides, pads, dilations, job.transposed, padding, job.attributes["groups"]
