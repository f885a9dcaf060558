"""Random convolutions in PyTorch's words, and who computed them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from tvmconvgrad.torch.dispatch.override import Override, overrides
from tvmconvgrad.torch.state import state
from tvmconvgrad.torch.steps.first import FirstStep
from tvmconvgrad.torch.steps.step import Step

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def forget_layers() -> None:
    state._known.clear()
    state._sizes.clear()
    state._first_step = FirstStep()
    state.foreign.clear()


def take_back() -> None:
    """Remove the overrides from the dispatcher, as if the package had not been imported."""
    for override in overrides.values():
        override._library._destroy()


def register() -> None:
    """Override as the import of the package does."""
    overrides.update({key: Override(key) for key in overrides})


def called() -> list[Step]:
    """The parts that were computed since the last test."""
    steps = [step for known in state._known.values() for layer in known.layers for step in layer.steps]
    return [step for step in steps if step.calls]


def all_ours() -> bool:
    """Whether there were parts to compute, each has a kernel of ours, and no reason to leave it to PyTorch."""
    steps = called()
    return bool(steps) and all(not step.reason and step.build and step.build.kernel for step in steps)


def steps(tensor: torch.Tensor) -> list[int]:
    """Strides of the axes of more than one element: of others PyTorch's own kernels have one or another."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape) if size > 1]


@dataclass
class Drawn:
    """The arguments of one `aten::convolution`, with small integers: sums are exact in every type."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    numbers: tuple[Any, ...]
    seed: int

    def results(self, mask: tuple[bool, bool, bool] = (True, True, True)) -> list[torch.Tensor | None]:
        """The forward's result, and what `aten::convolution_backward` returns for a mask."""
        out = torch.ops.aten.convolution(self.input, self.weight, self.bias, *self.numbers)
        generator = torch.Generator().manual_seed(self.seed)
        grad = torch.randint(-2, 3, out.shape, generator=generator).to(out.dtype)
        if self.seed % 2:  # as the result lies, where it has channels last; else in PyTorch's usual order
            grad = torch.empty_like(out).copy_(grad)
        sizes = [out.shape[1]]
        return [
            out,
            *torch.ops.aten.convolution_backward(grad, self.input, self.weight, sizes, *self.numbers, list(mask)),
        ]

    def __str__(self) -> str:
        stride, padding, dilation, transposed, output_padding, groups = self.numbers
        kind = "transposed" if transposed else "plain"
        shapes = f"{list(self.input.shape)} {self.input.stride()} by {list(self.weight.shape)} {self.weight.stride()}"
        return f"{kind} {self.input.dtype} {shapes} s{stride} p{padding} d{dilation} op{output_padding} g{groups}"


def draw(seed: int) -> Drawn:
    """A random convolution of any kind, layout and type."""
    random, torch_random = Random(seed), torch.Generator().manual_seed(seed)
    rank, transposed, groups = random.choice((1, 2, 2, 2, 3)), random.random() < 0.4, random.choice((1, 1, 1, 2, 3))
    c, o = (groups * random.randint(1, 6) for _ in range(2))
    k, stride = ([random.randint(1, 3) for _ in range(rank)] for _ in range(2))
    dilation, padding = [random.randint(1, 2) for _ in range(rank)], [random.randint(0, 2) for _ in range(rank)]
    most = [max(s, d) - 1 if transposed else 0 for s, d in zip(stride, dilation)]
    output_padding = [random.randint(0, extra) for extra in most]
    image = [random.randint(5, 9) for _ in range(rank)]
    dtype = random.choice((torch.float32, torch.float32, torch.bfloat16, torch.float16))

    def integers(*shape: int) -> torch.Tensor:
        values = torch.randint(-2, 3, shape, generator=torch_random).to(dtype)
        last = rank > 1 and random.random() < 0.5
        return values.to(memory_format=FORMATS[rank + 2]) if last else values

    weight = integers(*((c, o // groups) if transposed else (o, c // groups)), *k)
    bias = torch.randint(-2, 3, (o,), generator=torch_random).to(dtype) if random.random() < 0.5 else None
    numbers = (stride, padding, dilation, transposed, output_padding, groups)
    return Drawn(integers(random.randint(1, 3), c, *image), weight, bias, numbers, seed)
