"""From the arguments of a call to a layer: what is computed, by which kernels, and what is left to PyTorch and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.spec.epilogue import Epilogue
from tvmconvgrad.torch.devices import Device
from tvmconvgrad.torch.layers import memory_formats
from tvmconvgrad.torch.layers.convolution import Convolution, output_shape, problem_of
from tvmconvgrad.torch.layers.layer import Backward, Forward
from tvmconvgrad.torch.layers.memory_formats import copier, is_dense, strides_of
from tvmconvgrad.torch.settings import DTYPES, Settings
from tvmconvgrad.torch.steps import findings
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.comparison import Comparison
from tvmconvgrad.torch.steps.step import Copier, Result, Step

Tensor = torch.Tensor
_MAX_RANK = 3  # spatial axes that the specification has
_READS = {Part.FORWARD: ("input", "weight"), Part.DATA: ("output", "weight"), Part.WEIGHTS: ("input", "output")}
"""The two tensors that each part reads, in the order of the operator's inputs."""
_WRITES = {Part.FORWARD: "output", Part.DATA: "input", Part.WEIGHTS: "weight"}


class Description:
    """A convolution, and how its tensors lie in memory: what the steps of a layer are made from.

    `tensors` has the input, the weight, and for a backward pass grad_output as "output". `arguments` are those of
    `aten::convolution` after the bias. `reason` says why PyTorch computes all parts; "" if kernels can.
    """

    def __init__(
        self, settings: Settings, device: Device, tensors: dict[str, Tensor], bias: Tensor | None, *arguments: Any
    ) -> None:
        input, weight = tensors["input"], tensors["weight"]
        stride, padding, dilation, transposed, output_padding, groups = arguments
        rank = weight.ndim - 2
        stride, padding, dilation, output_padding = (
            _per_axis(value, rank) for value in (stride, padding, dilation, output_padding)
        )
        numbers: Any = (stride, padding, dilation, output_padding, groups)
        self.settings, self.device, self.tensors, self.bias = settings, device, tensors, bias
        shapes: Any = tuple(input.shape), tuple(weight.shape)
        self.reason = self._refusal_of_tensors(rank) or self._refusal_of_numbers(rank, transposed, *numbers)
        output: Any = () if self.reason else output_shape(transposed, *shapes, *numbers)
        dtype = DTYPES.get(input.dtype, str(input.dtype).removeprefix("torch."))
        described: Any = (*shapes, output, *numbers, dtype)
        self.conv = Convolution(transposed, *described)
        self.reason = self.reason or self._refusal_of_result()
        self.channels_last = not self.reason and memory_formats.is_channels_last(
            input, weight, stride, padding, dilation, transposed, output_padding, groups, bias=bias
        )

    def step(self, part: Part, has_bias: bool = False) -> Step:
        """A new step that computes a part; with `has_bias` its kernel also adds the bias, or gives the bias gradient,
        if it is for CPUs."""
        if self.reason:
            return self._left(part, self.reason)
        filter_last = self.channels_last if part is Part.WEIGHTS else self._filter_is_last(self.tensors["weight"])
        copiers = [self._copier(name, filter_last if name == "weight" else self.channels_last) for name in _READS[part]]
        try:
            problem = problem_of(part, self.conv, channels_last=self.channels_last, filter_channels_last=filter_last)
        except ValueError as error:
            return self._left(part, str(error))
        if has_bias and self.device.gpu is None:
            option = Epilogue(bias=True) if part is Part.FORWARD else Epilogue(bias_delta=True)
            problem = replace(problem, epilogue=option)
        if problem.epilogue.bias and self.bias is not None:
            copiers.append(None if self.bias.is_contiguous() else torch.Tensor.contiguous)
        copies = tuple(copy is not None for copy in copiers)
        shape = getattr(self.conv, _WRITES[part])
        result = Result(shape, strides_of(shape, self.channels_last), self.tensors["weight"].dtype)
        target = self.device.target(self.settings.algorithm)
        comparison = findings.comparison(problem, self.device, target, copies)
        build = Build(problem, target, self.device.gpu)
        layout = self._layout(part, filter_last, copies)
        return Step(self.device, part, layout, copiers, result, build, comparison)

    def _left(self, part: Part, reason: str) -> Step:
        """A step that PyTorch computes."""
        return Step(self.device, part, _format(self.channels_last), (), None, None, Comparison(), reason)

    def _layout(self, part: Part, filter_last: bool, copies: Sequence[bool]) -> str:
        """The memory formats in which a kernel reads and writes, and which inputs are copied for that."""
        layout = _format(self.channels_last)
        if filter_last != self.channels_last:
            layout += f", weight {_format(filter_last)}"
        copied = (name for name, is_copied in zip((*_READS[part], "bias"), copies) if is_copied)
        return layout + "".join(f", {'grad_output' if name == 'output' else name} copied" for name in copied)

    def _copier(self, name: str, channels_last: bool) -> Copier | None:
        """What makes a tensor dense in a memory format; None if it is."""
        tensor = self.tensors[name]
        if is_dense(tuple(tensor.shape), tensor.stride(), channels_last):
            return None
        return copier(tensor.ndim - 2, channels_last)

    def _filter_is_last(self, weight: Tensor) -> bool:
        """Whether the kernel reads a filter with channels last.

        A filter that is dense in either format is read in that format. Any other is copied into the data's.
        """
        shape, strides = tuple(weight.shape), weight.stride()
        if not is_dense(shape, strides, self.channels_last) and is_dense(shape, strides, not self.channels_last):
            return not self.channels_last
        return self.channels_last

    def _refusal_of_tensors(self, rank: int) -> str:
        """Why tensors of these types and shapes are left to PyTorch; "" if they are not."""
        found = {tensor.dtype for tensor in self.tensors.values()}
        if not 1 <= rank <= _MAX_RANK:
            return f"{rank} spatial axes"
        if len({tensor.ndim for tensor in self.tensors.values()}) > 1:
            return "tensors of different ranks"
        if len(found) > 1 or not found <= set(DTYPES):
            return f"type {', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in found))}"
        if not found <= self.settings.dtypes:
            return f"enable(dtypes=...) leaves out {found.pop()}"
        if any(0 in tensor.shape for tensor in self.tensors.values()):
            return "a tensor without elements"
        return self.device.obstacle()

    def _refusal_of_numbers(self, rank: int, transposed: bool, *numbers: Any) -> str:
        """The same for the convolution's numbers: PyTorch is to say in its own words what it does not take."""
        stride, padding, dilation, output_padding, groups = numbers
        if {len(value) for value in numbers[:-1]} != {rank}:
            return f"numbers of other than {rank} axes"
        if min(*stride, *dilation, groups) < 1 or min(*padding, *output_padding) < 0:
            return "numbers that no convolution has"
        most = [max(pair) if transposed else 1 for pair in zip(stride, dilation)]
        is_passed_over = not transposed and "output" not in self.tensors  # as the double backward counts on
        if not is_passed_over and any(more >= limit for more, limit in zip(output_padding, most)):
            return "output_padding that no convolution has"
        return ""

    def _refusal_of_result(self) -> str:
        """The same for the shapes that follow, and for what the user's `layers` says, once `conv` is known."""
        output, bias = self.tensors.get("output"), self.bias
        if bias is not None and tuple(bias.shape) != self.conv.output[1:2]:
            return "a bias of another shape than the result's channels"
        if bias is not None and bias.dtype != self.tensors["input"].dtype:
            return "a bias of another type than the input's"
        if min(self.conv.output, default=1) <= 0:
            return "a result without elements"
        if output is not None and tuple(output.shape) != self.conv.output:
            return "a grad_output of another shape than the result's"
        if not self.settings.allows(self.conv):
            return "enable(layers=...) leaves it out"
        return ""


def forward_of(
    settings: Settings, device: Device, input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any
) -> Forward:
    """A new layer for a call of `aten::convolution` on a device. `arguments` are those after the bias."""
    found = Description(settings, device, {"input": input, "weight": weight}, bias, *arguments)
    has_bias = bias is not None
    return Forward(found.conv, found.step(Part.FORWARD, has_bias), has_bias)


def backward_of(
    settings: Settings,
    device: Device,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    mask: Sequence[bool],
    *arguments: Any,
) -> Backward:
    """A new layer for a call of `aten::convolution_backward` that asks for the gradients of a `mask`, by the input, the
    weight and the bias. `arguments` are as in `forward_of`."""
    tensors = {"input": input, "weight": weight, "output": grad_output}
    found = Description(settings, device, tensors, None, *arguments)
    return Backward(found.conv, found.step(Part.DATA), found.step(Part.WEIGHTS, has_bias=bool(mask[2])))


def _format(channels_last: bool) -> str:
    return "channels last" if channels_last else "contiguous"


def _per_axis(value: Any, rank: int) -> tuple[int, ...]:
    """An argument with an entry for each spatial axis; PyTorch also allows one entry for all."""
    numbers = tuple(int(number) for number in value)
    return numbers * rank if len(numbers) == 1 else numbers
