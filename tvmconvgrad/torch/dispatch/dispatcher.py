"""PyTorch's dispatcher, by its private functions: what it calls for an operator and a key, and who registered it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

NAMES = ("_convolution", "convolution_backward")
"""The `aten` operators that we override. Autograd, vmap, checkpointing, DDP and Inductor all call them in the end;
`aten::convolution` calls `_convolution`, and graphs that torch.jit has traced call it directly."""
KEYS = ("CPU", "CUDA")
"""The dispatch keys for which we override them: they are below autograd."""
_KEYS = torch._C.DispatchKey
_PYTORCHS = re.compile(r"/aten/src/ATen/Register\w+\.cpp:\d+$")
"""Where PyTorch registers its own kernels: in files that its build generates."""
_HERE = __file__.rpartition("/")[0]


def registered(name: str, key: str) -> str:
    """The file and line that have registered an `aten` operator for a key; "" if none has."""
    found = re.search(rf"^{key}: registered at (\S+)", torch._C._dispatch_dump(f"aten::{name}"), re.MULTILINE)
    return found[1] if found else ""


def foreign(name: str, key: str) -> str:
    """The same if it is somebody else's than PyTorch's; "" otherwise.

    For CUDA, PyTorch itself registers `convolution_backward`, with the same function as for all backends.
    """
    place = registered(name, key)
    return "" if _PYTORCHS.search(place) else place


def is_in_force(name: str, key: str) -> bool:
    """Whether the dispatcher calls our override of an operator, not one that was registered later."""
    return registered(name, key).startswith(_HERE)


def kernel_below(name: str, key: str) -> Callable[..., Any]:
    """The kernel that the dispatcher calls for an operator and a key now, before we override it.

    PyTorch registers its own for all backends, under CompositeExplicitAutograd; anybody else only for the key.
    RuntimeError if this PyTorch has no way to call the latter.
    """
    if hasattr(torch.library, "get_kernel"):
        captured = torch.library.get_kernel(f"aten::{name}", key)
        return functools.partial(captured.call_boxed, torch._C.DispatchKeySet(getattr(_KEYS, key)))
    if foreign(name, key):
        raise RuntimeError(
            f"aten::{name} is overridden by {foreign(name, key)}, which PyTorch {torch.__version__} cannot call "
            "from another override: expected 2.9 or later"
        )
    return functools.partial(getattr(torch.ops.aten, name).default._op_dk, _KEYS.CompositeExplicitAutograd)
