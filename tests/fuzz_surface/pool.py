"""Problems with their right results, and the many ways in which a tensor may lie in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import tvmconvgrad
from tests.fuzz_surface.strange import OwnArray
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case
from tests.support.cases.convolution import Array, operands
from tests.support.cases.random_cases import random_cases
from tests.support.oracles import reference
from tvmconvgrad import Kernel


@dataclass(frozen=True)
class Known:
    """A case with its operator, its inputs, and the result that they must have."""

    case: Case
    operator: Any
    inputs: tuple[Array, Array]
    shape_input: tuple[int, ...] | None
    result: Array

    @classmethod
    def of(cls, case: Case) -> Known:
        call, dtype = case.call, DTYPES[case.dtype]
        tensors = operands(case.convolution, case.result)
        first, second = case.arrays(tensors)
        exact = reference.gradient(case.convolution, case.result, tensors)
        wanted = layouts.from_canonical(exact, case.axes(case.result))
        result = (np.ascontiguousarray(wanted, np.float32) + np.float32(0)).astype(dtype)
        operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
        return cls(case, operator, (first, second), call.shape_input, result)

    @cached_property
    def kernel(self) -> Kernel:
        """Compiled, as `compile` gives it."""
        first, second = self.inputs
        kernel = self.operator.compile(first.shape, second.shape, self.shape_input, dtype=self.case.dtype)
        assert isinstance(kernel, Kernel)
        return kernel

    @property
    def names(self) -> tuple[str, ...]:
        """What an error may name: the arguments of a call."""
        name = self.operator.shape_attribute
        return (
            *self.operator.input_names,
            self.operator.output_name,
            "out",
            "target",
            *([self.operator.spelled(name)] if name else []),
        )


def make_pool(count: int) -> list[Known]:
    """The same ones each time: few, since each has a kernel that has to be built."""
    cases = random_cases(38, count)
    types = ("f32", "f16", "f32", "bf16", "f16")
    return [Known.of(case.with_dtype(types[place % len(types)])) for place, case in enumerate(cases)]


def _strided(random: Random, array: Array) -> Array:
    steps = [random.choice((1, 1, 2, -1, -2)) for _ in array.shape]
    room = np.zeros([size * abs(step) for size, step in zip(array.shape, steps, strict=True)], array.dtype)
    view = room[tuple(slice(None, None, step) for step in steps)]
    view[...] = array
    return view


def _misplaced(random: Random, array: Array) -> Array:
    begin = random.randint(1, 63)
    room = np.zeros(array.nbytes + 64, np.uint8)
    view: Array = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def _transposed(random: Random, array: Array) -> Array:
    axes = random.sample(range(array.ndim), array.ndim)
    return np.ascontiguousarray(array.transpose(axes)).transpose(np.argsort(axes))


def _mapped(random: Random, array: Array) -> Array:
    with tempfile.TemporaryDirectory() as folder:
        view = np.memmap(Path(folder, "memory"), array.dtype, "w+", shape=array.shape)
    view[...] = array
    return view


def _torch(random: Random, array: Array) -> Any:
    import torch

    numbers = np.ascontiguousarray(array)
    if array.dtype == DTYPES["bf16"]:
        return torch.from_numpy(numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(numbers)


PLACES: tuple[Callable[[Random, Array], Any], ...] = (
    lambda random, array: array.copy(), lambda random, array: array.copy(), _strided, _misplaced, _transposed,
    lambda random, array: array.copy().view(OwnArray), lambda random, array: array.copy(order="F"),
)  # fmt: skip


def placed(random: Random, array: Array, torch: bool = False) -> Any:
    """A tensor of the same elements in a memory of its own."""
    if torch:
        return _torch(random, array.copy())
    return (_mapped if random.random() < 0.01 and array.size else random.choice(PLACES))(random, array)


def overlapping(random: Random, inputs: list[Array], shape: tuple[int, ...]) -> tuple[list[Array], Array]:
    """Inputs, and a result that shares memory with one of them."""
    place, dtype = random.randrange(2), inputs[0].dtype
    ours, size = inputs[place], prod(shape)
    room = np.zeros(ours.size + size + 1, dtype)
    begin = random.randint(0, size)
    mine = room[begin : begin + ours.size].reshape(ours.shape)
    mine[...] = ours
    first = random.randint(0, ours.size)
    out = room[first : first + size].reshape(shape)
    return [mine if at == place else array.copy() for at, array in enumerate(inputs)], out


def numbers(tensor: Any) -> Array:
    """The elements as NumPy has them, in f32."""
    if isinstance(tensor, np.ndarray):
        return tensor.astype(np.float32)
    return tensor.detach().float().numpy()  # type: ignore[no-any-return]
