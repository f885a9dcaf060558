"""PyTorch's convolution_backward and convolution on canonical tensors, with explicit pads where it cannot say them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.cases.convolution import Array, Convolution, Shape, Tensors

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")


def gradient(convolution: Convolution, result: str, tensors: Tensors, dtype: Any = torch.float64) -> Array:
    """The result y, x or w from the two other tensors."""
    conv = convolution
    given = {name: torch.from_numpy(np.ascontiguousarray(array)).to(dtype) for name, array in tensors.items()}
    direct = _is_said_by_torch(conv)
    window = conv.x if direct else _window(conv)
    x = torch.zeros(conv.batch, conv.c, *conv.x, dtype=dtype) if result == "x" else given["x"]
    if not direct:
        x = _cut(x, conv, window)
    pads = conv.pads_begin if direct else (0,) * conv.rank
    options = (conv.strides, pads, conv.dilations, False, (0,) * conv.rank, conv.groups)
    if result == "y":
        return _numpy(torch.ops.aten.convolution(x, given["w"], None, *options))
    w = torch.zeros(conv.shapes["w"], dtype=dtype) if result == "w" else given["w"]
    mask = (result == "x", result == "w", False)
    found = torch.ops.aten.convolution_backward(given["y"], x, w, None, *options, mask)
    if result == "w":
        return _numpy(found[1])
    return _numpy(found[0] if direct else _paste(found[0], conv))


def transposed_gradient(convolution: Convolution, result: str, tensors: Tensors, dtype: Any = torch.float64) -> Array:
    """w or x as gradients of PyTorch's own transposed convolution; only for what that can say."""
    conv = convolution
    given = {name: torch.from_numpy(np.ascontiguousarray(array)).to(dtype) for name, array in tensors.items()}
    y = torch.zeros(conv.shapes["y"], dtype=dtype) if result == "y" else given["y"]
    w = torch.zeros(conv.shapes["w"], dtype=dtype) if result == "w" else given["w"]
    options = (conv.strides, conv.pads_begin, conv.dilations, True, conv.beyond, conv.groups)
    mask = (result == "y", result == "w", False)
    found = torch.ops.aten.convolution_backward(given["x"], y, w, None, *options, mask)
    return _numpy(found[0] if result == "y" else found[1])


def has_transposed(conv: Convolution) -> bool:
    """Whether PyTorch's transposed convolution can say this one."""
    limits = zip(conv.beyond, conv.strides, conv.dilations, strict=True)
    return conv.pads_begin == conv.pads_end and all(op < max(s, d) for op, s, d in limits)


def _is_said_by_torch(conv: Convolution) -> bool:
    """Whether equal pads at both ends lead PyTorch from y to this x."""
    axes = zip(conv.x, conv.y, conv.strides, conv.extents, conv.pads_begin, strict=True)
    return all(x + 2 * p >= e and (x + 2 * p - e) // s + 1 == y for x, y, s, e, p in axes)


def _window(conv: Convolution) -> Shape:
    """The padded elements of x that the taps reach."""
    return tuple(s * (y - 1) + e for y, s, e in zip(conv.y, conv.strides, conv.extents, strict=True))


def _cut(x: Any, conv: Convolution, window: Shape) -> Any:
    """y with its pads, or less than it, as far as the taps reach."""
    sizes = zip(conv.pads_begin, window, conv.x, strict=True)
    padded = _pad(x, [(b, max(0, w - b - size)) for b, w, size in sizes])
    reached = (..., *(slice(0, w) for w in window))
    return padded[reached]


def _paste(window: Any, conv: Convolution) -> Any:
    """The elements of x in a gradient by the window; the others zero."""
    sizes = zip(conv.pads_begin, window.shape[2:], conv.x, strict=True)
    padded = _pad(window, [(0, max(0, b + size - w)) for b, w, size in sizes])
    inside = (..., *(slice(b, b + size) for b, size in zip(conv.pads_begin, conv.x, strict=True)))
    return padded[inside]


def _pad(tensor: Any, pads: list[tuple[int, int]]) -> Any:
    return torch.nn.functional.pad(tensor, [p for pair in reversed(pads) for p in pair])


def _numpy(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array
