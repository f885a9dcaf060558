"""Tensor maps: what a GPU's Tensor Memory Accelerator (TMA) is told of a tensor. Pure Python.

Since sm_90 a thread may have a box of a tensor copied to shared memory: TMA computes all addresses by itself and
writes zeros for what is outside of the tensor. The driver packs into 128 bytes what it has to know ("Tensor Map Object
Management" in the manual of CUDA's driver), and they are passed to the kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

Tensor = Literal["first", "second", "out"]

SIZE, ALIGNMENT = 128, 64
"""Bytes of a map."""
DTYPES = {"f16": 6, "bf16": 9}
"""The driver's numbers of types, CU_TENSOR_MAP_DATA_TYPE_..."""
SWIZZLES = {32: 1, 64: 2, 128: 3}
"""The driver's numbers for lines by their bytes, CU_TENSOR_MAP_SWIZZLE_..."""
_ITEM = 2
_PLAIN, _ZEROS, _FETCH_256 = 0, 0, 3  # no interleaving; zeros outside; CU_TENSOR_MAP_L2_PROMOTION_L2_256B


@dataclass(frozen=True)
class TensorMap:
    """A dense tensor of 16 bits, of which boxes are copied. Axes are innermost first."""

    tensor: int | Tensor
    """One of the kernel's tensors, or an offset in bytes into its workspace."""
    dtype: str
    sizes: tuple[int, ...]
    box: tuple[int, ...]
    """Elements along each axis; of pixels: how many channels, and pixels."""
    line_bytes: int
    """Of the lines of a box, whose vectors change places in shared memory (schedules/cuda/gemm/copies/swizzle.py)."""
    corners: tuple[tuple[int, int], ...] = ()
    """If boxes are pixels: for each axis but channels and images, where a box's rows begin, from the tensor's begin,
    and where they end, from its end. From the last pixel of a row a box goes on with the first one of the next."""
    steps: tuple[int, ...] = ()
    """How far pixels lie apart along these axes."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types; `from_dict` takes it back."""
        fields = {name: list(getattr(self, name)) for name in ("sizes", "box", "steps")}
        return {**vars(self), **fields, "corners": [list(pair) for pair in self.corners]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TensorMap:
        """The map of which `to_dict` made `data`."""
        fields = {name: tuple(data[name]) for name in ("sizes", "box", "steps")}
        corners = tuple((lower, upper) for lower, upper in data["corners"])
        return cls(data["tensor"], data["dtype"], line_bytes=data["line_bytes"], corners=corners, **fields)

    def encoding(self, address: int) -> tuple[str, tuple[Any, ...]]:
        """The driver's function that makes the map of a tensor at an address, and what it is given after the map."""
        sizes = _array(ctypes.c_uint64, self.sizes)
        strides = _array(ctypes.c_uint64, [_ITEM * prod(self.sizes[:axis]) for axis in range(1, len(self.sizes))])
        begin = (DTYPES[self.dtype], len(self.sizes), address, sizes, strides)
        end = (_PLAIN, SWIZZLES[self.line_bytes], _FETCH_256, _ZEROS)
        if not self.corners:
            steps = _array(ctypes.c_uint32, [1] * len(self.sizes))
            return "cuTensorMapEncodeTiled", (*begin, _array(ctypes.c_uint32, self.box), steps, *end)
        lower, upper = (_array(ctypes.c_int, each) for each in zip(*self.corners))
        steps = _array(ctypes.c_uint32, (1, *self.steps, 1))
        return "cuTensorMapEncodeIm2col", (*begin, lower, upper, *self.box, steps, *end)


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)
