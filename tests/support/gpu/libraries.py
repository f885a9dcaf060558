"""As much of PyTorch and of CuPy as a call on a GPU uses, on the host's memory."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tests.support.cases.convolution import Array


def aligned(array: Array, offset: int = 0) -> Array:
    """A copy at an address of so many bytes beyond a multiple of 256."""
    memory = np.empty(array.nbytes + 512, np.uint8)
    begin = -memory.ctypes.data % 256 + offset
    copy: Array = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@dataclass(frozen=True)
class Device:
    """torch.device."""

    type: str
    index: int | None = None


class Tensor:
    """torch.Tensor."""

    layout = "torch.strided"
    is_quantized = requires_grad = is_nested = False
    __torch_dispatch__ = None
    __torch_function__ = classmethod(lambda *_: None)
    written = 0

    def __init__(self, array: Array, gpu: int | None = 0) -> None:
        self.array, self.device = array, Device("cpu") if gpu is None else Device("cuda", gpu)
        self.shape, self.dtype, self.itemsize = array.shape, array.dtype, array.itemsize
        self.is_cpu = gpu is None

    def untyped_storage(self) -> Any:
        return self

    def is_contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    def is_neg(self) -> bool:
        return False

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def numel(self) -> int:
        return self.array.size

    def storage_offset(self) -> int:
        return 0

    def nbytes(self) -> int:
        return self.array.size * self.itemsize if self.is_contiguous() else 1 << 62

    def is_inference(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.itemsize for stride in self.array.strides)

    def detach(self) -> Tensor:
        return self

    resolve_neg = detach

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else self.clone()

    def clone(self) -> Tensor:
        return Tensor(aligned(np.ascontiguousarray(self.array)), self.device.index)

    def copy_(self, source: Tensor) -> None:
        self.array[...] = source.array

    def zero_(self) -> None:
        self.array[...] = 0


def torch(stream: int = 40) -> Any:
    """The module; each GPU's stream has the number `stream` and the GPU's."""
    module = types.ModuleType("torch")
    parameter = type("Parameter", (Tensor,), {"__torch_function__": None})

    def empty(shape: Any, dtype: Any, device: Device) -> Tensor:
        found = Tensor(aligned(np.full(shape, 77, dtype)), device.index)
        module.made.append(found)  # type: ignore[attr-defined]
        return found

    def increment_version(value: Tensor) -> None:
        value.written += 1

    contents: dict[str, Any] = {
        "Tensor": Tensor,
        "_C": types.SimpleNamespace(_len_torch_dispatch_stack=lambda: 0),
        "jit": types.SimpleNamespace(is_tracing=lambda: False),
        "autograd": types.SimpleNamespace(
            forward_ad=types.SimpleNamespace(_current_level=-1),
            graph=types.SimpleNamespace(increment_version=increment_version),
        ),
        "nn": types.SimpleNamespace(Parameter=parameter),
        "get_num_threads": lambda: 1,
        "strided": "torch.strided",
        "float32": np.dtype(np.float32),
        "float16": np.dtype(np.float16),
        "bfloat16": "bf16",
        "uint8": np.dtype(np.uint8),
        "device": Device,
        "empty": empty,
        "empty_strided": lambda shape, _, dtype, device: empty(shape, dtype, device),
        "is_grad_enabled": lambda: True,
        "cuda": types.SimpleNamespace(
            current_stream=lambda device: types.SimpleNamespace(cuda_stream=stream + device.index)
        ),
        "made": [],
    }
    vars(module).update(contents)
    return module


class CupyArray:
    """cupy.ndarray."""

    def __init__(self, array: Array, gpu: int = 0) -> None:
        self.array = array
        self.device = types.SimpleNamespace(id=gpu)
        self.shape, self.dtype, self.size, self.itemsize = array.shape, array.dtype, array.size, array.itemsize
        self.strides, self.flags = array.strides, types.SimpleNamespace(c_contiguous=array.flags.c_contiguous)
        self.data = types.SimpleNamespace(ptr=array.ctypes.data)

    def __setitem__(self, places: Any, values: Any) -> None:
        self.array[places] = getattr(values, "array", values)


class CupyDevice:
    """cupy.cuda.Device, as a context."""

    current: ClassVar[list[int]] = [0]

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        self.current.append(self.number)

    def __exit__(self, *_: object) -> None:
        self.current.pop()


def cupy(stream: int = 60) -> Any:
    """The module; each GPU's stream has the number `stream` and the GPU's."""
    module = types.ModuleType("cupy")
    held: list[Array] = []

    def alloc(size: int) -> Any:
        held.append(aligned(np.full(size, 77, np.uint8)))
        return types.SimpleNamespace(ptr=held[-1].ctypes.data)

    contents: dict[str, Any] = {
        "ndarray": CupyArray,
        "array": lambda value, order: CupyArray(aligned(np.ascontiguousarray(value.array)), value.device.id),
        "empty": lambda shape, dtype: CupyArray(aligned(np.full(shape, 77, dtype)), CupyDevice.current[-1]),
        "cuda": types.SimpleNamespace(
            Device=CupyDevice,
            alloc=alloc,
            get_current_stream=lambda gpu: types.SimpleNamespace(ptr=stream + gpu),
        ),
        "held": held,
    }
    vars(module).update(contents)
    return module
