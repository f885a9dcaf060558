"""PyTorch's dispatcher, by its private functions: what it calls for an operator on CPUs, and who registered that."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

KEY = "CPU"
"""The dispatch key that we override: it is below autograd."""
_KEYS = torch._C.DispatchKey
_HERE = __file__.rpartition("/")[0]


def registered(name: str) -> str:
    """The file and line that have registered an `aten` operator for the key CPU; "" if none has."""
    found = re.search(rf"^{KEY}: registered at (\S+)", torch._C._dispatch_dump(f"aten::{name}"), re.MULTILINE)
    return found[1] if found else ""


def is_in_force(name: str) -> bool:
    """Whether the dispatcher calls our override of an operator, not one that was registered later."""
    return registered(name).startswith(_HERE)


def kernel_below(name: str) -> Callable[..., Any]:
    """The kernel that the dispatcher calls for an operator on a CPU now, before we override it.

    PyTorch registers its own for all backends, under CompositeExplicitAutograd; anybody else for the key CPU.
    RuntimeError if this PyTorch has no way to call the latter.
    """
    if registered(name):
        if not hasattr(torch.library, "get_kernel"):
            raise RuntimeError(
                f"aten::{name} is overridden by {registered(name)}, which PyTorch {torch.__version__} cannot call from "
                "another override: expected 2.9 or later"
            )
        captured = torch.library.get_kernel(f"aten::{name}", KEY)
        return functools.partial(captured.call_boxed, torch._C.DispatchKeySet(_KEYS.CPU))
    return functools.partial(getattr(torch.ops.aten, name).default._op_dk, _KEYS.CompositeExplicitAutograd)
