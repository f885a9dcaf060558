"""Random calls: tensors of every library, in memory of every form, as inputs and as results."""

from __future__ import annotations

import functools
import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.cases.layouts import to_canonical
from tests.support.memory.capsules import Producer
from tests.support.oracles import reference

COUNT = 100  # calls for each operator
CONV = Convolution(2, 1, 3, 4, (5, 4), (5, 4), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
PEERS = {name for name in ("torch", "jax", "array_api_strict") if importlib.util.find_spec(name)}


@dataclass
class Memory:
    """An array in memory of some form, and whether a result may be written there."""

    array: Array
    writable: bool = True
    around: Array = field(default_factory=lambda: np.zeros(0, np.uint8))


def off(array: Array, draw: random.Random) -> Memory:
    begin = draw.choice((1, 2, 4, 8, 12, 32))
    around = np.full(array.nbytes + 64, 77, np.uint8)
    copy = around[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return Memory(copy, around=around)


def strided(array: Array, draw: random.Random) -> Memory:
    steps = [draw.choice((1, 2, 3)) for _ in array.shape]
    around = np.zeros([size * step for size, step in zip(array.shape, steps)], array.dtype)
    copy = around[tuple(slice(None, None, step) for step in steps)]
    copy[...] = array
    return Memory(copy)


def turned(array: Array, draw: random.Random) -> Memory:
    order = draw.sample(range(array.ndim), array.ndim)
    return Memory(np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order)))


def backwards(array: Array, draw: random.Random) -> Memory:
    turn = tuple(slice(None, None, draw.choice((1, -1))) for _ in array.shape)
    return Memory(np.ascontiguousarray(array[turn])[turn])


def read_only(array: Array, draw: random.Random) -> Memory:
    copy = array.copy()
    copy.flags.writeable = False
    return Memory(copy, writable=False)


def repeated(array: Array, draw: random.Random) -> Memory:
    """All the same along an axis, which lies in one place."""
    axis = draw.randrange(array.ndim)
    first = np.ascontiguousarray(array.take([0], axis))
    strides = [0 if i == axis else stride for i, stride in enumerate(first.strides)]
    shared = np.lib.stride_tricks.as_strided(first, array.shape, strides)
    return Memory(shared, writable=array.shape[axis] == 1)


def windows(array: Array, draw: random.Random) -> Memory:
    """Rows that share all elements but one."""
    steps = [sum(array.shape[axis:]) * array.itemsize for axis in range(1, array.ndim)] + [array.itemsize]
    steps[draw.randrange(array.ndim - 1)] = array.itemsize
    row = np.arange(4 * sum(array.shape) ** 2, dtype=np.float32) % 5
    shared = np.lib.stride_tricks.as_strided(row.astype(array.dtype), array.shape, steps)
    places = {sum(i * step for i, step in zip(index, steps)) for index in np.ndindex(*array.shape)}
    return Memory(shared, writable=len(places) == array.size)


FORMS: list[Callable[[Array, random.Random], Memory]] = [
    lambda array, draw: Memory(array.copy()), off, strided, turned, backwards, read_only, repeated, windows,
]  # fmt: skip


@dataclass
class Given:
    """A tensor of some library, and what may be done with it."""

    value: Any
    reads: bool = True
    writes: bool = True


def numpy(memory: Memory, draw: random.Random) -> Given:
    return Given(memory.array, writes=memory.writable)


def capsule(memory: Memory, draw: random.Random) -> Given:
    version = draw.choice((None, (1, 0), (1, 2)))
    flags = draw.choice((0, 0, 1, 2)) | (not memory.array.flags.writeable)
    writes = memory.writable and version is not None and flags == 0
    return Given(Producer(memory.array, version=version, flags=flags), writes=writes)


def tensor(memory: Memory, draw: random.Random) -> Given:
    import torch

    array = memory.array
    if not array.flags.writeable or min(array.strides) < 0 or array.ctypes.data % array.itemsize:
        return numpy(memory, draw)  # PyTorch has none of these
    bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
    found = bits.view(
        {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[array.dtype.name]
    )
    kind = draw.choice(("plain", "plain", "plain", "parameter", "watched", "negative"))
    if kind == "parameter":
        return Given(torch.nn.Parameter(found), reads=False, writes=False)
    if kind == "watched":
        return Given(found.requires_grad_(), reads=False, writes=False)
    if kind == "negative" and memory.writable:
        return Given(torch._neg_view(-found))
    return Given(found, writes=memory.writable)


def strict(memory: Memory, draw: random.Random) -> Given:
    import array_api_strict

    if memory.array.dtype != np.float32:
        return numpy(memory, draw)
    return Given(array_api_strict.asarray(memory.array, copy=False), writes=memory.writable)


def jax_array(memory: Memory, draw: random.Random) -> Given:
    import jax

    return Given(jax.numpy.asarray(memory.array), writes=False)


PRODUCERS = [numpy, capsule]
PRODUCERS += [
    make for name, make in (("torch", tensor), ("array_api_strict", strict), ("jax", jax_array)) if name in PEERS
]


def values(value: Any) -> Array:
    """What a tensor of any library holds, in float64."""
    if isinstance(value, Producer):
        value = value.array
    if type(value).__module__.startswith("torch"):
        value = value.detach().resolve_neg().double().numpy()
    return np.asarray(value).astype(np.float64)


@functools.lru_cache
def calls(case: Case) -> tuple[Any, Any]:
    """The kernel and the operator of a case."""
    return case.call.compile(), getattr(cg, case.operator)(**case.attributes)


@pytest.mark.parametrize("operator", OPERATORS)
def test_random_places(operator: str) -> None:
    draw = random.Random(f"{operator} 1")
    computed = refused = 0
    for turn in range(COUNT):
        case = Case(operator, CONV).with_dtype(draw.choice(list(DTYPES)))
        call = draw.choice(calls(case))
        tensors = operands(case.convolution, case.result, turn)
        inputs = [draw.choice(PRODUCERS)(draw.choice(FORMS)(array, draw), draw) for array in case.arrays(tensors)]
        shape = case.shape(case.result)
        out = draw.choice(PRODUCERS)(draw.choice(FORMS)(np.full(shape, 2, DTYPES[case.dtype]), draw), draw)
        if draw.random() < 0.3:
            out = Given(None)
        before = [values(one.value) for one in inputs]
        kept = None if out.value is None else values(out.value)
        if all(one.reads for one in inputs) and out.writes:
            result = call(inputs[0].value, inputs[1].value, out=out.value)
            assert out.value is None or result is out.value
            assert_same(values(result).reshape(shape), expected(case, before))
            computed += 1
        else:
            with pytest.raises(ValueError, match=r"^(input_forward|output_delta|filter|out): "):
                call(inputs[0].value, inputs[1].value, out=out.value)
            assert kept is None or np.array_equal(values(out.value), kept)
            refused += 1
        assert all(np.array_equal(values(one.value), was) for one, was in zip(inputs, before, strict=True))
    assert computed > COUNT / 8, (computed, refused)
    assert refused > COUNT / 8, (computed, refused)


def expected(case: Case, inputs: list[Array]) -> Array:
    given = {name: to_canonical(array, case.axes(name)) for name, array in zip(case.inputs, inputs, strict=True)}
    exact = reference.gradient(case.convolution, case.result, given)
    return exact.transpose(case.axes(case.result)).astype(DTYPES[case.dtype]).astype(np.float64)


@pytest.mark.parametrize("operator", OPERATORS)
def test_random_overlaps(operator: str) -> None:
    """A result anywhere in the memory of both inputs, which are anywhere in it themselves."""
    draw = random.Random(f"{operator} 2")
    for turn in range(40):
        case = Case(operator, CONV).with_dtype(draw.choice(list(DTYPES)))
        kernel, dtype = calls(case)[0], DTYPES[case.dtype]
        arrays = case.arrays(operands(case.convolution, case.result, turn))
        shapes = [*(array.shape for array in arrays), case.shape(case.result)]
        memory = np.random.default_rng(turn).integers(-3, 4, 2 * sum(map(prod, shapes))).astype(dtype)
        begins = [draw.randrange(memory.size - prod(shape)) for shape in shapes]
        if "torch" in PEERS and draw.random() < 0.5 and case.dtype != "bf16":
            import torch

            whole = torch.from_numpy(memory)
            parts = [whole[begin : begin + prod(shape)].view(shape) for begin, shape in zip(begins, shapes)]
        else:
            parts = [memory[begin : begin + prod(shape)].reshape(shape) for begin, shape in zip(begins, shapes)]
        want = expected(case, [values(part) for part in parts[:2]])
        rest, begin = memory.copy(), begins[2]
        kernel(*parts[:2], out=parts[2])
        assert_same(values(parts[2]), want)
        rest[begin : begin + want.size] = memory[begin : begin + want.size]
        assert np.array_equal(rest.astype(np.float64), memory.astype(np.float64))  # nothing else was written
