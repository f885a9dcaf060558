"""What `tvmconvgrad.torch` adds to a call of a tiny convolution, in microseconds of processor time.

    python benchmarks/frameworks/torch_overhead.py

"passed on" is a call while nothing is enabled. "left to PyTorch" is a type that no kernel takes, so that PyTorch's own
kernel is called by way of the override.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch

CALLS, ROUNDS = 2000, 9
BACKWARD = torch.ops.aten.convolution_backward.default
TYPES = {"f64": torch.float64, "f32": torch.float32}


def microseconds(call: Callable[[], object]) -> float:
    """Of one call. Processor time: another program's does not count."""
    call()
    begin = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - begin) / CALLS * 1e6


def measure(dtype: torch.dtype) -> tuple[float, float]:
    """A forward call and a backward one."""
    x, w = torch.ones(1, 8, 4, 4, dtype=dtype), torch.ones(8, 8, 3, 3, dtype=dtype)
    y = torch.conv2d(x, w, None, 1, 1)
    arguments = (y, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    return microseconds(lambda: torch.conv2d(x, w, None, 1, 1)), microseconds(lambda: BACKWARD(*arguments))


def show(ways: dict[str, tuple[str, Callable[[], Any]]]) -> None:
    """Print the least of several rounds, in turn, of ways in which a type is computed."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, (dtype, context) in ways.items():
                with context():
                    found[name].append(measure(TYPES[dtype]))
    for name, times in found.items():
        forward, backward = (min(one) for one in zip(*times))
        print(f"{name:22} forward {forward:6.2f} us, both gradients {backward:6.2f} us")


def main() -> None:
    """PyTorch alone first: from the import on, its calls come by this package."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # our kernel in every call
    show({f"PyTorch, {dtype}": (dtype, contextlib.nullcontext) for dtype in TYPES})
    import tvmconvgrad.torch as cgt

    show(
        {
            "passed on, f64": ("f64", contextlib.nullcontext),
            "left to PyTorch, f64": ("f64", cgt.enabled),
            "passed on, f32": ("f32", contextlib.nullcontext),
            "ours, f32": ("f32", cgt.enabled),
        }
    )


if __name__ == "__main__":
    main()
