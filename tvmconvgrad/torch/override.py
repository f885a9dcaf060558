"""Overrides `aten::_convolution` and `aten::convolution_backward` in PyTorch's dispatcher, for the key CPU.

The key CPU is below autograd: autograd, vmap, checkpointing, DDP and Inductor all call these two operators in the end.
`aten::convolution` calls `_convolution`, and graphs that torch.jit has traced call it directly. PyTorch's own kernel,
or one that somebody has registered before, computes what ours does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tvmconvgrad.common.warnings import say
from tvmconvgrad.torch.description import backward_of, forward_of
from tvmconvgrad.torch.dispatcher import KEY, kernel_below, registered
from tvmconvgrad.torch.layer import Backward, Forward, Gradients
from tvmconvgrad.torch.settings import Settings
from tvmconvgrad.torch.step import Step

Tensor = torch.Tensor
MOST_LAYERS, MOST_SETTINGS = 4096, 16
"""Layers that are remembered for each pass, forward or backward, and settings whose layers are. When there are more,
all layers, or the oldest settings, are forgotten: a program whose shapes never repeat must not fill the memory, nor one
that makes a new function for `enable(layers=...)` in every step."""
SIZES_AT_ONCE, PATIENCE = 8, 3
"""Kernels are built at the first call for the first SIZES_AT_ONCE combinations of a layer's pass, batch and image size.
For a later one they are built after PATIENCE calls, since some programs have another size in every step."""
NAMES = ("_convolution", "convolution_backward")
_NUMBERS = 6
"""How many arguments of `_convolution` after the bias say what is computed."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class OverrideWarning(UserWarning):
    """Somebody else overrides PyTorch's convolutions, too."""


@dataclass(frozen=True, eq=False)
class Called:
    """The layers that were called under some settings."""

    settings: Settings
    forwards: dict[Any, Forward] = field(default_factory=dict)
    backwards: dict[Any, Backward] = field(default_factory=dict)

    @property
    def layers(self) -> list[Forward | Backward]:
        """All of them."""
        return [*list(self.forwards.values()), *list(self.backwards.values())]


class Override:
    """The override of both operators, the settings that are pushed and removed, and the layers that were called.

    Operators are overridden from the first `push` on, for good: PyTorch's dispatcher may not be changed while other
    threads call through it. Without settings all calls are passed on to PyTorch. Layers are remembered.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._library: Any = None
        self._stack: list[Settings] = []
        self._in_force: Called | None = None
        self._last: Called | None = None
        self.foreign: dict[str, int] = {}
        """The number of calls with subclasses of Tensor, by the name of the class."""
        self._sizes: dict[Any, int] = {}
        """The number of sizes in which each convolution was called, by `Convolution.without_sizes`."""
        self._known: dict[Any, Called] = {}
        self._their_forward: Callable[..., Any] = kernel_below(NAMES[0])
        self._their_backward: Callable[..., Any] = kernel_below(NAMES[1])

    @property
    def settings(self) -> Settings | None:
        """Those that apply now; None if PyTorch computes everything."""
        called = self._in_force
        return None if called is None else called.settings

    @property
    def layers(self) -> list[Forward | Backward]:
        """All that were called under the present settings, or under the last ones if there are none."""
        return [] if self._last is None else self._last.layers

    def push(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        with self._lock:
            self._begin()
            self._stack.append(settings)
            self._follow()

    def remove(self, settings: Settings) -> None:
        """Undo the last `push` of this object. The settings that are last on the stack then apply."""
        with self._lock:
            for place in reversed(range(len(self._stack))):
                if self._stack[place] is settings:
                    del self._stack[place]
                    break
            self._follow()

    def replace(self, settings: Settings | None) -> None:
        """Empty the stack and apply these settings; with None, stop overriding."""
        with self._lock:
            if settings is not None:
                self._begin()
            self._stack = [] if settings is None else [settings]
            self._follow()

    def steps(self) -> list[Step]:
        """The steps of all `layers`."""
        return [step for layer in self.layers for step in layer.steps]

    def _follow(self) -> None:
        if not self._stack:
            self._in_force = None
            return
        settings = self._stack[-1]
        key = settings.algorithm, settings.dtypes, id(settings.layers)
        called = self._known.pop(key, None) or Called(settings)
        while len(self._known) >= MOST_SETTINGS:
            del self._known[next(iter(self._known))]
        self._known[key] = called  # which keeps the function whose id() it is
        self._in_force = self._last = called

    def _begin(self) -> None:
        """Override the operators, unless they are."""
        if self._library is not None:
            return
        for name in NAMES:
            other = registered(name)
            if other:
                say(f"aten::{name} is overridden by {other} already: it computes what ours does not", OverrideWarning)
        self._their_forward, self._their_backward = map(kernel_below, NAMES)
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name, function in zip(NAMES, (self._convolution, self._convolution_backward)):
            self._library.impl(name, function, KEY)

    def _convolution(self, input: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
        """`arguments` are stride, padding, dilation, transposed, output_padding, groups, and four for cuDNN."""
        called = self._in_force
        if called is None or not self._are_plain(input, weight):
            return self._their_forward(input, weight, bias, *arguments)  # type: ignore[no-any-return]
        numbers = arguments[:_NUMBERS]
        key = (
            *(input.shape, input.stride(), input.dtype, weight.shape, weight.stride(), weight.dtype),
            *(None if bias is None else bias.shape, _hashable(*numbers)),
        )
        layer = called.forwards.get(key)
        if layer is None:
            layer = self._keep(called.settings, called.forwards, key, forward_of, input, weight, bias, *numbers)
        if layer.is_theirs():
            return self._their_forward(input, weight, bias, *arguments)  # type: ignore[no-any-return]
        return layer.run(input, weight, bias, lambda: self._their_forward(input, weight, bias, *arguments))

    def _convolution_backward(
        self, grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *arguments: Any
    ) -> Gradients:
        """`arguments` are stride, padding, dilation, transposed, output_padding, groups and output_mask."""
        called, tensors = self._in_force, (grad_output, input, weight)
        if called is None or not self._are_plain(*tensors):
            return self._their_backward(*tensors, bias_sizes, *arguments)  # type: ignore[no-any-return]
        *numbers, mask = arguments
        key = (
            *(grad_output.shape, grad_output.stride(), grad_output.dtype, input.shape, input.stride(), input.dtype),
            *(weight.shape, weight.stride(), weight.dtype, _hashable(*numbers)),
        )
        layer = called.backwards.get(key)
        if layer is None:
            layer = self._keep(called.settings, called.backwards, key, backward_of, *tensors, *numbers)
        if layer.is_theirs(mask):
            return self._their_backward(*tensors, bias_sizes, *arguments)  # type: ignore[no-any-return]
        return layer.run(*tensors, mask, lambda mask: self._their_backward(*tensors, bias_sizes, *numbers, mask))

    def _keep(
        self, settings: Settings, layers: dict[Any, Any], key: Any, describe: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Describe and remember a new layer."""
        if len(layers) >= MOST_LAYERS:
            layers.clear()
            self._sizes.clear()
        layer = layers[key] = describe(settings, *arguments)
        sizes = self._sizes[layer.conv.without_sizes] = self._sizes.get(layer.conv.without_sizes, 0) + 1
        for step in layer.steps:
            step.patience = PATIENCE if sizes > SIZES_AT_ONCE else 0
        return layer

    def _are_plain(self, *tensors: Tensor) -> bool:
        """Whether no tensor is of a subclass; PyTorch computes those, and the report counts them."""
        for tensor in tensors:
            if type(tensor) not in _PLAIN:
                self._note_foreign(*tensors)
                return False
        return True

    def _note_foreign(self, *tensors: Tensor) -> None:
        for kind in {type(tensor) for tensor in tensors} - set(_PLAIN):
            self.foreign[kind.__qualname__] = self.foreign.get(kind.__qualname__, 0) + 1


def _hashable(stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    """The numbers of a convolution, whose lists cannot be a key."""
    return tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(output_padding), groups


override = Override()
