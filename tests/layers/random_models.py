"""Random PyTorch models whose convolutions are known, since they are drawn, and all state that a model has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Drawn = tuple[str, int, int, tuple[int, ...], tuple[int, ...], int, str]
"""A convolution: operator, channels, filters, kernel, strides, groups, type."""


class Lambda(nn.Module):  # type: ignore[misc, name-defined]
    """A module that calls a function with itself and its input."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Restless(nn.Module):  # type: ignore[misc, name-defined]
    """Changes whatever a forward pass can change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.plain, self.seen, self.calls = torch.ones(2), [], 0
        self.scale = nn.Parameter(torch.ones(1))
        self.seen_by_hook: list[int] = []
        self.register_forward_hook(lambda module, *_: module.seen_by_hook.append(1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(self.calls)
        self.mean.add_(1)
        self.plain.mul_(2)
        self.extra = nn.Linear(1, 1)
        self.newest = x
        self.register_buffer("later", torch.rand(1))
        with torch.no_grad():
            self.scale.mul_(3)
        random.random()
        np.random.rand()
        self.train(not self.training)
        return x * self.scale


class Model:
    """A chain of parts, each of which computes the convolutions that `drawn` has."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.drawn: Counter[Drawn] = Counter()
        self.dtype = "f32"
        self.channels = self.random.choice([2, 3, 4])
        self.shape = (self.random.choice([0, 1, 2]), self.channels, 12, 11)
        parts = [self._part() for _ in range(self.random.choice([1, 2, 3, 5]))]
        self.module = nn.Sequential(*parts).train(self.random.random() < 0.5)

    def _part(self) -> Any:
        kinds = [self._convolution] * 3 + [self._aside, self._wrapped, self._wrapped, self._function, self._autocast]
        return self.random.choice(kinds)()

    def _convolution(self, plain: bool = False) -> Any:
        """A module of one convolution, whose result is no smaller than its input; `plain` has nothing unusual."""
        groups = self.random.choice([1, 1, self.channels])
        filters = groups * self.random.choice([1, 2, 3])
        size = (self.random.choice([1, 2, 3]), self.random.choice([1, 3]))
        stride = self.random.choice([1] if plain else [1, np.int64(1), (1, 1)])
        up = self.random.random() < 0.3
        lazy = not plain and self.random.random() < 0.2
        given: dict[str, Any] = {"stride": stride, "groups": groups, "bias": self.random.random() < 0.5}
        if not up:
            given["padding"] = self.random.choice(["same", 1, (2, 1)])
            given["padding_mode"] = self.random.choice(["zeros", "zeros", "circular"])
        self._draw("ConvTranspose" if up else "Convolution", filters, size, groups)
        entering, self.channels = self.channels, filters
        if lazy:
            return (nn.LazyConvTranspose2d if up else nn.LazyConv2d)(filters, size, **given)
        return (nn.ConvTranspose2d if up else nn.Conv2d)(entering, filters, size, **given)

    def _draw(self, op: str, filters: int, size: tuple[int, ...], groups: int) -> None:
        self.drawn[op, self.channels, filters, size, (1, 1), groups, self.dtype] += 1

    def _aside(self) -> Any:
        channels = self.channels
        return self.random.choice(
            [
                lambda: nn.BatchNorm2d(channels),
                lambda: nn.LazyBatchNorm2d(),
                lambda: nn.Dropout(0.5),
                lambda: torch.jit.script(nn.Sequential(nn.BatchNorm2d(channels), nn.Dropout(0.5))),
                Restless,
            ]
        )()

    def _wrapped(self) -> Any:
        example = torch.rand(2, self.channels, 12, 11)
        part = nn.Sequential(self._convolution(plain=True), nn.BatchNorm2d(self.channels))
        wrap: Callable[[], Any] = self.random.choice(
            [
                lambda: torch.jit.trace(part, example, check_trace=False),
                lambda: torch.jit.script(part),
                lambda: torch.jit.freeze(torch.jit.trace(part.eval(), example, check_trace=False)),
                lambda: torch.fx.symbolic_trace(part),
                lambda: Lambda(lambda self, x: checkpoint(self.part, x, use_reentrant=False), part=part),
                lambda: Lambda(lambda self, x: torch.vmap(self.part[0])(x[None])[0], part=part),
                lambda: Lambda(lambda _, x: part(x)),  # in a closure: no part of the model
                lambda: Lambda(_in_inference_mode, part=part),
                lambda: Lambda(lambda self, x: self.part(x) if x.sum() < 1e30 else x, part=part),
                lambda: Lambda(lambda self, x: self.part[0].forward(x), part=part),
            ]
        )
        return wrap()

    def _function(self) -> Any:
        filters, groups = self.random.choice([1, 2]), 1
        weight = torch.rand(filters, self.channels, 3, 3)
        calls: list[Callable[..., Any]] = [
            lambda _, x: torch.convolution(x, weight, None, [1], [1], [1], False, [0], 1),
            lambda _, x: torch.ops.aten.conv2d(x, weight, padding=[1, 1]),
            lambda _, x: torch.ops.aten.conv2d.padding(x, weight, padding="same"),
            lambda _, x: nn.functional.conv2d(x, weight, padding=(np.int64(1), 1)),
            lambda _, x: nn.functional.conv2d(x.permute(0, 1, 3, 2), weight, padding=1).permute(0, 1, 3, 2),
        ]
        self._draw("Convolution", filters, (3, 3), groups)
        self.channels = filters
        return Lambda(self.random.choice(calls))

    def _autocast(self) -> Any:
        self.dtype = self.random.choice(["bf16", "f16"])
        kind = torch.bfloat16 if self.dtype == "bf16" else torch.float16
        part = self._convolution()
        self.dtype = "f32"

        def call(self: Any, x: Any) -> Any:
            with torch.autocast("cpu", kind):
                return self.part(x).float()

        return Lambda(call, part=part)


def _in_inference_mode(self: Any, x: Any) -> Any:
    with torch.inference_mode():
        y = self.part[0](x)
    return y.clone()


def state(model: Any) -> list[Any]:
    """All of a model that a forward pass could change, and of the random numbers; equal where nothing changed."""
    found: list[Any] = [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]
    found += [torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    for name, module in model.named_modules():
        found += [name, type(module), module.training]
        if not isinstance(module, torch.jit.ScriptModule):
            found += [id(module), id(vars(module)), *map(_told, vars(module).items())]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found += [name, *_told((name, tensor))]
    return found


def _told(item: tuple[str, Any]) -> Any:
    name, value = item
    if isinstance(value, torch.Tensor):
        bits = None if nn.parameter.is_lazy(value) else value.detach().flatten().view(torch.uint8).tolist()
        return name, type(value), value.requires_grad, value.grad, bits
    if isinstance(value, dict):
        return name, list(map(_told, value.items()))
    return name, value if isinstance(value, (int, str, tuple)) else (list(value) if isinstance(value, list) else None)
