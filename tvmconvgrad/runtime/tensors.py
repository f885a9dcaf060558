"""A caller's tensors, of whatever library: looked at, and refused in words where no kernel can take them.

NumPy arrays and PyTorch tensors are passed as they are; whatever else offers its memory through DLPack is seen through
a NumPy array on the same memory. What may not be read or written by somebody whom its library does not see, such as
autograd's, is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tvmconvgrad.common import process
from tvmconvgrad.runtime import dlpack
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, Kind, NumpyKind, Tensor, check_places, dtype_of
from tvmconvgrad.spec.values import show

NUMPY: Kind = NumpyKind()
_kinds: dict[type, Kind] = {np.ndarray: NUMPY}  # by exact type: what a subclass does to its methods is unknown


@process.forgets
def forget_kinds() -> None:
    """As if no other library's tensors than NumPy's had been seen."""
    for seen in [kind for kind in _kinds if kind is not np.ndarray]:
        del _kinds[seen]


def known_kind(value: Any) -> Kind | None:
    """The kind of a plain array or tensor, of a library that has been seen before."""
    return _kinds.get(type(value))


def understand(name: str, value: Any, *, writes: bool = False) -> Tensor:
    """Look at a caller's tensor; raises TypeError or ValueError, which name it, for what no kernel can take.

    With `writes` it is to receive a result.
    """
    masked = isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))  # np.ma would import it
    if isinstance(value, np.ndarray) and not masked:
        return _understand_array(name, value, writes)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        return _understand_torch(name, value, torch, writes)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, getattr(jax, "Array", ())):
        with process.lock:
            from tvmconvgrad.runtime import jax_arrays

        return jax_arrays.understand(name, value, jax, writes)
    if masked or isinstance(value, type) or not hasattr(value, "__dlpack__"):
        what = f"{show(value)} of type {type(value).__name__}"
        raise TypeError(f"{name}: {what} is no tensor, expected a NumPy array or an object with __dlpack__")
    memory = dlpack.Memory(name, value, writes=writes)
    return _understand_array(name, np.asarray(memory).view(NUMPY_DTYPES[memory.dtype]), writes)


def _understand_array(name: str, value: Any, writes: bool) -> Tensor:
    plain = np.ndarray.view(value, np.ndarray)
    if writes and not plain.flags.writeable:
        raise ValueError(f"{name}: is read-only")
    dtype = dtype_of(name, plain.dtype)
    if writes:
        check_places(name, plain.shape, plain.strides, plain.itemsize)
    return Tensor(plain, plain.shape, dtype, NUMPY)


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the memory of two tensors may have bytes in common; their extents are compared, not their elements."""
    (begin, end), (other_begin, other_end) = (tensor.kind.extent(tensor.value) for tensor in (one, other))
    return begin < other_end and other_begin < end


def _understand_torch(name: str, value: Any, torch: Any, writes: bool) -> Tensor:
    with process.lock:
        from tvmconvgrad.runtime.torch_tensors import check

    check(name, value, writes=writes)
    return Tensor(value, tuple(value.shape), dtype_of(name, value.dtype), meet_torch(torch))


def meet_torch(torch: Any) -> Kind:
    """The kind of PyTorch's tensors on the CPU; from now on they, and those on GPUs, are known."""
    with process.lock:
        from tvmconvgrad.runtime.torch_tensors import torch_kind

    kind = _kinds.get(torch.Tensor)
    if kind is None:
        kind = torch_kind(torch)
        _kinds.update({torch.Tensor: kind, torch.nn.Parameter: kind})
    return kind


def understand_shape(name: str, value: Any) -> Any:
    """A caller's 1-D tensor of s32 as a NumPy array; raises TypeError or ValueError, which name it."""
    array: Any = value
    dtype = getattr(value, "dtype", None)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, getattr(torch, "Tensor", ())):
        with process.lock:
            from tvmconvgrad.runtime.torch_tensors import check

        check(name, value)
        array = array.numpy() if dtype == torch.int32 else None
    elif not isinstance(value, np.ndarray):
        memory = dlpack.Memory(name, value, expected=dlpack.S32)
        array = np.asarray(memory).view(np.int32)
    if array is None or array.dtype != np.int32 or array.ndim != 1:
        raise TypeError(f"{name}: a {value.ndim}-D tensor of {dtype}, expected a 1-D tensor of s32")
    return array
