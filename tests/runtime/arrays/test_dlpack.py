"""Tensors of libraries that are known by DLPack alone."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from tests.runtime.layers import FILTERS, WIDE_FILTERS, layer
from tests.support.cases.case import DTYPES, assert_same
from tests.support.cases.convolution import Array


class Wrapped:
    """A tensor that offers nothing but DLPack, of a certain age."""

    def __init__(self, inner: Any, *, device: Any = None, options: bool = True) -> None:
        self.inner, self.device, self.options = inner, device, options

    def __dlpack_device__(self) -> Any:
        return self.inner.__dlpack_device__() if self.device is None else self.device

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.options:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.inner.__dlpack__(**options)


def test_dlpack_of_both_versions() -> None:
    kernel, inputs, want = layer()
    for options in (False, True):
        wrapped = [Wrapped(array, options=options) for array in inputs]
        result = kernel(*wrapped)
        assert isinstance(result, np.ndarray)
        assert_same(result, want)


def test_strided_and_read_only_memory() -> None:
    kernel, inputs, want = layer()
    locked = inputs[0].copy()
    locked.flags.writeable = False
    assert_same(kernel(Wrapped(locked), Wrapped(np.asfortranarray(inputs[1]))), want)
    backwards = np.ascontiguousarray(inputs[0][:, ::-1])[:, ::-1]
    assert_same(kernel(Wrapped(backwards), Wrapped(inputs[1])), want)


def test_a_result_through_dlpack() -> None:
    kernel, inputs, want = layer()
    for out in (np.zeros_like(want), np.zeros(want.shape[::-1], np.float32).T):
        wrapped = Wrapped(out)
        assert kernel(*inputs, wrapped) is wrapped
        assert_same(out, want)
    locked = np.zeros_like(want)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="out: is read-only"):
        kernel(*inputs, Wrapped(locked))
    assert not locked.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_behind_dlpack(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    tensors = [torch.from_numpy(array.astype(np.float32)).to(kinds[dtype]) for array in inputs]
    assert_same(kernel(*[Wrapped(tensor) for tensor in tensors]), want)
    out = torch.zeros(want.shape, dtype=kinds[dtype])
    kernel(*tensors, out=Wrapped(out))
    assert torch.equal(out.double(), torch.from_numpy(want.astype(np.float64)))


def test_memory_is_read_where_it_lies_and_given_back() -> None:
    kernel, inputs, want = layer(WIDE_FILTERS)

    class Owner(np.ndarray[Any, np.dtype[Any]]):
        """An array whose end can be seen."""

    owner = inputs[0].view(Owner)
    end = weakref.ref(owner)
    wrapped = Wrapped(owner)
    for _ in range(3):
        assert_same(kernel(wrapped, inputs[1]), want)
    del owner, wrapped
    gc.collect()
    assert end() is None


def test_devices_without_memory_that_the_cpu_reads() -> None:
    kernel, inputs, _ = layer()
    for device in ((2, 0), (8, 1), (10, 0)):
        with pytest.raises(ValueError, match=r"output_delta: is on DLPack device \(\d+, \d\), expected the CPU"):
            kernel(inputs[0], Wrapped(inputs[1], device=device))


@pytest.mark.parametrize("device", [3, (), ("cpu", 0), object()])
def test_nonsense_for_a_device(device: Any) -> None:
    kernel, inputs, _ = layer()
    with pytest.raises(ValueError, match="input_forward: a Wrapped cannot be read through DLPack"):
        kernel(Wrapped(inputs[0], device=device), inputs[1])


class Broken:
    """Says that it is a tensor, and is none."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def foreign_capsule() -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(_MEMORY), b"something else", None)


_MEMORY = ctypes.c_int64(0)


def test_objects_that_break_the_protocol() -> None:
    kernel, inputs, _ = layer()
    used = inputs[0].__dlpack__()
    np.from_dlpack(Broken(used))
    errors = RuntimeError("no"), BufferError("no"), TypeError("no")
    for answer in (None, 3, b"dltensor", foreign_capsule(), used, *errors):
        with pytest.raises(ValueError, match="input_forward: "):
            kernel(Broken(answer), inputs[1])


@pytest.mark.parametrize("dtype", ["f8", "i4", "u1", "?", "c8"])
def test_types_that_no_kernel_takes(dtype: str) -> None:
    kernel, inputs, _ = layer()
    with pytest.raises(ValueError, match=r"input_forward: DLPack's type code \d .* expected f32, f16 or bf16"):
        kernel(Wrapped(inputs[0].astype(dtype)), inputs[1])


def test_other_shapes() -> None:
    kernel, inputs, _ = layer()
    scalar: Array = np.array(3, np.float32)
    for bad in (scalar, inputs[0][:1], inputs[0][..., None], inputs[0][:0]):
        with pytest.raises(ValueError, match="input_forward: shape"):
            kernel(Wrapped(bad), inputs[1])
