"""What PyTorch's dispatcher calls in place of its own convolutions, from the import of this file on, for good.

The dispatcher may not be changed while another thread calls through it: the thread would crash. So all is registered
when this file is imported, and later only `state` changes. PyTorch's own kernel, or one that somebody has registered
before, computes what ours does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tvmconvgrad.torch import devices
from tvmconvgrad.torch.devices import Device
from tvmconvgrad.torch.dispatch.dispatcher import KEYS, NAMES, foreign, is_in_force, kernel_below, registered
from tvmconvgrad.torch.layers import memory_formats
from tvmconvgrad.torch.layers.description import backward_of, forward_of
from tvmconvgrad.torch.layers.layer import Backward, Forward, Gradients
from tvmconvgrad.torch.settings import Settings
from tvmconvgrad.torch.state import state

Tensor = torch.Tensor
_NUMBERS = 6
"""How many arguments of `_convolution` after the bias say what is computed."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))


class OverrideWarning(UserWarning):
    """Somebody else overrides PyTorch's convolutions, too."""


class Override:
    """Both operators for one dispatch key. Without settings, calls are passed on."""

    def __init__(self, key: str) -> None:
        self.key, self.device = key, key.lower()
        self.below = {name: foreign(name, key) for name in NAMES}
        """Where somebody else has registered each operator before; "" if nobody has."""
        self.their_forward, self.their_backward = (kernel_below(name, key) for name in NAMES)
        self._library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # that a kernel is overridden, and be it PyTorch's own: `others` says what a user should know
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name, function in zip(NAMES, (self.convolution, self.convolution_backward)):
                self._library.impl(name, function, key)  # type: ignore[no-untyped-call]

    def convolution(self, input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """`arguments` are stride, padding, dilation, transposed, output_padding, groups, and four for cuDNN."""
        called = state.in_force
        device = None if called is None else self._device_of(called.settings, input, weight, bias)
        if called is None or device is None:
            return self.their_forward(input, weight, bias, *arguments)  # type: ignore[no-any-return]
        numbers = arguments[:_NUMBERS]
        known = _described(input), _described(weight), None if bias is None else _described(bias)
        key = device, memory_formats.flags(), *known, _hashable(*numbers)
        layer: Forward | None = called.forwards.get(key)
        if layer is None:
            layer = state.keep(called.settings, called.forwards, key, forward_of, device, input, weight, bias, *numbers)
        if layer.uses_pytorch():
            return self.their_forward(input, weight, bias, *arguments)  # type: ignore[no-any-return]
        return layer.run(input, weight, bias, lambda: self.their_forward(input, weight, bias, *arguments))

    def convolution_backward(
        self, grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *arguments: Any
    ) -> Gradients:
        """`arguments` are stride, padding, dilation, transposed, output_padding, groups and output_mask."""
        called, tensors = state.in_force, (grad_output, input, weight)
        device = None if called is None else self._device_of(called.settings, *tensors)
        if called is None or device is None:
            return self.their_backward(*tensors, bias_sizes, *arguments)  # type: ignore[no-any-return]
        *numbers, mask = arguments
        known = _described(grad_output), _described(input), _described(weight)
        key = device, memory_formats.flags(), *known, _hashable(*numbers), bool(mask[2])
        layer: Backward | None = called.backwards.get(key)
        if layer is None:
            layer = state.keep(called.settings, called.backwards, key, backward_of, device, *tensors, mask, *numbers)
        if layer.uses_pytorch(mask):
            return self.their_backward(*tensors, bias_sizes, *arguments)  # type: ignore[no-any-return]
        return layer.run(*tensors, mask, lambda mask: self.their_backward(*tensors, bias_sizes, *numbers, mask))

    def _device_of(self, settings: Settings, *tensors: Tensor | None) -> Device | None:
        """The device of a call's tensors. None if they are on several, or on one that the settings leave to PyTorch, or
        of a subclass: PyTorch computes those."""
        if self.device not in settings.devices:
            return None
        for tensor in tensors:
            if type(tensor) not in _PLAIN:
                _note_foreign(*tensors)
                return None
        return devices.CPU if self.key == "CPU" else devices.common(*tensors)


def others() -> Iterator[str]:
    """Who else overrides the operators, and what that means, a sentence each."""
    for override in overrides.values():
        for name, other in override.below.items():
            named = f"aten::{name} for {override.key}"
            if other:
                yield f"{named} is overridden by {other} already: it computes what ours does not"
            if not is_in_force(name, override.key):
                yield f"{named} is overridden by {registered(name, override.key)}, which is called in our place"


def _note_foreign(*tensors: Tensor | None) -> None:
    """Count a call for the report."""
    for kind in {type(tensor) for tensor in tensors} - set(_PLAIN):
        state.foreign[kind.__qualname__] = state.foreign.get(kind.__qualname__, 0) + 1


def _described(tensor: Tensor) -> Any:
    """What of a tensor a layer depends on."""
    return tensor.shape, tensor.stride(), tensor.dtype


def _hashable(stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    """The numbers of a convolution, whose lists cannot be a key."""
    return tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups


overrides = {key: Override(key) for key in KEYS}
