"""Memory on a GPU that belongs to nobody's library, and arrays in it: for those who have neither PyTorch nor CuPy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, Shape, dtype_of
from tvmconvgrad.spec.dtypes import ITEM_BYTES

Array = npt.NDArray[Any]


class Memory:
    """`size` bytes on a GPU, in the order of the default stream, until `close`. MemoryError."""

    def __init__(self, gpu: int, size: int) -> None:
        self.gpu, self.bytes, self.address = gpu, size, 0
        with driver.driver().on(gpu):
            self.address = driver.driver().allocate(max(size, 1), driver.LEGACY_STREAM)

    def close(self) -> None:
        """Give it back now."""
        address, self.address = self.address, 0
        if address:
            with driver.driver().on(self.gpu):
                driver.driver().free(address, driver.LEGACY_STREAM)

    def __del__(self) -> None:
        self.close()


class GpuArray:
    """Dense rows of f32, f16 or bf16 on a GPU, undefined at first. A kernel takes it like any library's tensor."""

    def __init__(self, shape: Shape, dtype: str, gpu: int = 0) -> None:
        self.shape, self.dtype = shape, dtype
        self.memory = Memory(gpu, prod(shape) * ITEM_BYTES[dtype])

    @classmethod
    def of(cls, array: Array, gpu: int = 0) -> GpuArray:
        """A copy of an array."""
        source = np.ascontiguousarray(array)
        made = cls(source.shape, dtype_of("array", source.dtype), gpu)
        with driver.driver().on(gpu):
            driver.driver().upload(made.memory.address, source.ctypes.data, source.nbytes)
        return made

    def numpy(self) -> Array:
        """A copy for the CPU."""
        copy: Array = np.empty(self.shape, NUMPY_DTYPES[self.dtype])
        with driver.driver().on(self.memory.gpu):
            driver.driver().synchronize(driver.LEGACY_STREAM)
            driver.driver().download(copy.ctypes.data, self.memory.address, copy.nbytes)
        return copy
