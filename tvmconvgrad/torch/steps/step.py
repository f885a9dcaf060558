"""One part of a layer, and who computes its next call: our kernel, PyTorch's, or each of them in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tvmconvgrad.frontends.errors import first_line
from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec.values import Shape
from tvmconvgrad.torch.devices import Device
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.comparison import Comparison
from tvmconvgrad.torch.steps.first import FirstStep

Tensor = torch.Tensor
Copier = Callable[[Tensor], Tensor]
is_deterministic = torch.are_deterministic_algorithms_enabled


class Result(NamedTuple):
    """The tensor that a kernel writes. Strides are in elements."""

    shape: Shape
    strides: Shape
    dtype: torch.dtype


class Step:
    """A part of a layer, for tensors of certain shapes and strides on a device, which `layout` tells in words.

    `copiers` make what the kernel reads, the two inputs and the bias if it adds one, dense in its memory format; None
    for what is. `reason` says why PyTorch always computes this part; then `result` and `build` are None. It is "" if a
    kernel can.
    """

    def __init__(
        self,
        device: Device,
        part: Part,
        layout: str,
        copiers: Sequence[Copier | None],
        result: Result | None,
        build: Build | None,
        comparison: Comparison,
        reason: str = "",
    ) -> None:
        self.device, self.part, self.layout = device, part, layout
        self.copiers, self.result, self.build = copiers, result, build
        self.comparison, self._reason = comparison, reason
        self.calls = 0
        self.patience = 0
        """How many calls PyTorch computes at least before the build starts."""
        self.first_step = FirstStep()
        """The program's; no build starts before it is over."""
        self._has_run = False

    @property
    def reason(self) -> str:
        """Why our kernel can never compute this; "" if it can."""
        return self._reason or (self.build.reason if self.build else "")

    def uses_pytorch(self) -> bool:
        """Whether PyTorch computes all further calls."""
        return bool(self.reason) or (self.comparison.is_ours is False and not is_deterministic())

    def kernel_for_this_call(self) -> Kernel | None:
        """Count a call. Returns our kernel if it computes this call, None if PyTorch does.

        Starts the build when it is due. A deterministic program waits for the build's end and takes no turns, so that
        all its calls are computed alike. While calls are recorded, our kernel is one that has run before: code may not
        be loaded meanwhile.
        """
        self.calls += 1
        if not self.first_step.is_over:
            is_gradient = self.part is not Part.FORWARD
            self.first_step.count(self, self.calls == 1, is_gradient, torch.is_grad_enabled())
        kernel = self._chosen()
        return None if kernel is None or (not self._has_run and self.device.is_recording()) else kernel

    def _chosen(self) -> Kernel | None:
        build = self.build
        if build is None or build.reason or self._reason:
            return None
        if is_deterministic():
            return build.wait()
        if self.comparison.is_ours is False:
            return None
        kernel = build.kernel or build.poll()
        if kernel is None:
            if not self.is_waiting:
                build.ask()
            return None
        if self.comparison.is_ours is None and not build.is_quiet:
            return None
        return kernel if self.comparison.next_is_ours else None

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early to start the build: there were too few calls, or this is the first step."""
        return self.calls <= self.patience or not self.first_step.is_over

    def ask(self) -> None:
        """Start the build now, for whoever waits for it, however few calls there were, unless PyTorch computes whatever
        comes."""
        self.patience = 0
        if self.build is not None and not self.uses_pytorch():
            self.build.ask(waits=True)

    @property
    def is_open(self) -> bool:
        """Whether calls are timed: our kernel is ready, it is open which one is faster, and nothing is being built.

        Nor is one timed that is recorded.
        """
        build = self.build
        if self.comparison.is_ours is not None or build is None or build.kernel is None or is_deterministic():
            return False
        return build.is_quiet and not self.device.is_recording()

    def compute(self, kernel: Kernel, read: Sequence[Tensor], bias_delta: Tensor | None = None) -> Tensor | None:
        """The result of our kernel; None if PyTorch has to compute it. A kernel with the option writes `bias_delta`.

        That is so if an input has no memory, or if the kernel's call raises, as it does if the workspace does not fit.
        After an error PyTorch computes for good, and `reason` says why.
        """
        dense = [tensor if copy is None else copy(tensor) for tensor, copy in zip(read, self.copiers)]
        shape, strides, dtype = self.result  # type: ignore[misc]
        out = torch.empty_strided(shape, strides, dtype=dtype, device=self.device.where)
        addresses = [tensor.data_ptr() for tensor in dense]
        if not all(addresses):
            return None
        alignment = self.device.alignment(dtype)
        if any(address % alignment for address in addresses):  # as torch.frombuffer() may return it
            return self.compute(kernel, [tensor.clone() for tensor in dense], bias_delta)
        one, two, *bias = dense
        try:
            self.device.run(kernel, one, two, out, bias[0] if bias else bias_delta)
        except Exception as error:  # nothing is written yet: PyTorch computes, and the report shows it
            self._reason = first_line(error)
            return None
        self._has_run = True
        return out

    def by(self, ours: Callable[[], Any] | None, theirs: Callable[[], Any]) -> Any:
        """Call `ours`, or `theirs` if `ours` is None or returns None, and return the result. Times it if `is_open`."""
        if not self.is_open:
            result = None if ours is None else ours()
            return theirs() if result is None else result
        if ours is not None:
            result, nanoseconds = self.device.timed(ours)
            if result is not None:
                self.comparison.add(True, nanoseconds)
                return result
        result, nanoseconds = self.device.timed(theirs)
        self.comparison.add(False, nanoseconds)
        return result
