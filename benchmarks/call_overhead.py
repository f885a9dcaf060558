"""What a call costs besides the arithmetic: microseconds for a layer of a few elements.

    python benchmarks/call_overhead.py

Interleaved, the median of many: a compiled kernel, the operator that looks its kernel up, TVM's own function of the
same kernel (which checks shapes and types too, but allocates nothing), and PyTorch's convolution_backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
import torch
import tvm_ffi

import tvmconvgrad as cg
from tvmconvgrad.compiler.llvm import build

SHAPE = (1, 2, 2, 2)  # NXC, both sides of a 1x1 convolution of two channels
FILTER = (1, 1, 2, 2)
ROUNDS, CALLS = 200, 100
OP = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), filter_shape=FILTER
)
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def main() -> None:
    """Print one line for each kind of tensor and type."""
    torch.set_num_threads(1)
    columns = ["kernel(a, b, out)", "kernel(a, b)", "op(a, b)", "TVM's function", "torch"]
    print(f"{'microseconds a call':20}" + "".join(f"{name:>19}" for name in columns))
    for dtype in NUMPY:
        ones = np.ones(SHAPE, NUMPY[dtype]), np.empty(FILTER, NUMPY[dtype])
        tensors = torch.ones(SHAPE, dtype=TORCH[dtype]), torch.empty(FILTER, dtype=TORCH[dtype])
        for library, (a, out) in (("numpy", ones), ("torch", tensors)):
            times = interleaved(calls(dtype, a, out))
            shown = [f"{times[name]:.2f}" if name in times else "-" for name in columns]
            print(f"{library + ' ' + dtype:20}" + "".join(f"{text:>19}" for text in shown))


def calls(dtype: str, a: Any, out: Any) -> dict[str, Callable[[], Any]]:
    """What is measured, by its column."""
    kernel = OP.compile(SHAPE, SHAPE, dtype=dtype)
    found: dict[str, Callable[[], Any]] = {
        "kernel(a, b, out)": lambda: kernel(a, a, out),
        "kernel(a, b)": lambda: kernel(a, a),
        "op(a, b)": lambda: OP(a, a),
    }
    if isinstance(a, torch.Tensor) or dtype != "bf16":  # TVM takes no bf16 from NumPy
        function = build(kernel.problem, kernel.target)[1].jit()["main"]
        prepared = [tvm_ffi.from_dlpack(value) for value in (a, a, out)] if dtype == "bf16" else [a, a, out]
        found["TVM's function"] = lambda: function(*prepared)
    if isinstance(a, torch.Tensor):
        found["torch"] = torch_call(a)
    return found


def torch_call(a: torch.Tensor) -> Callable[[], Any]:
    """PyTorch's weight gradient of the same layer, in its own layout."""
    data, weights = a.permute(0, 3, 1, 2), torch.ones(2, 2, 1, 1, dtype=a.dtype)
    mask = (False, True, False)
    return lambda: torch.ops.aten.convolution_backward(
        data, data, weights, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, mask
    )


def interleaved(measured: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of a call, in rounds that run each of them in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(ROUNDS):
        for name, call in measured.items():
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            seconds[name].append(time.perf_counter() - begin)
    return {name: median(values) / CALLS * 1e6 for name, values in seconds.items()}


if __name__ == "__main__":
    main()
