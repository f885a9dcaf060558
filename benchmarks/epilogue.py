"""What accumulation, the bias gradient and a forward's bias cost in a kernel's call, and in passes by PyTorch.

    python benchmarks/epilogue.py --every 9 all          # every ninth gradient; builds the kernels first
    python benchmarks/epilogue.py --only data --data-format NCX resnet_50
    python benchmarks/epilogue.py --only forward --dtype bf16 unet

Times of one thread, divided by those of the gradient or the forward alone: medians over rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import tvmconvgrad as cg
from tvmconvgrad.futures import in_background
from tvmconvgrad.layers import LayerGradient, select_gradients
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES, aligned_empty
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.epilogue import Epilogue

OPTIONS = {
    "alone": Epilogue(),
    "accumulate": Epilogue(accumulate=True),
    "bias": Epilogue(bias_delta=True),
    "both": Epilogue(accumulate=True, bias_delta=True),
}
FORWARD_OPTIONS = {"alone": Epilogue(), "bias": Epilogue(bias=True)}
SECONDS, SHORT = 0.6, 0.002
"""About how long all rounds of a gradient take, and at least one measurement."""

Call = Callable[[], object]


def main() -> None:
    """Print one line for each gradient, then means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--only", choices=["filters", "data", "forward"], default="filters")
    parser.add_argument("--dtype", choices=list(ITEM_BYTES), default="f32")
    parser.add_argument("--data-format", choices=["NXC", "NCX"], default="NXC")
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    found = select_gradients(given.suites, dtypes=[given.dtype], data_format=given.data_format, only=given.only)
    chosen = list({one.problem.key: one for _, one in found}.values())[:: given.every]
    options = FORWARD_OPTIONS if given.only == "forward" else OPTIONS
    futures = [
        {name: in_background(_with(one, option), None, None, False) for name, option in options.items()}
        for one in chosen
    ]
    kernels = [{name: future.result() for name, future in of.items()} for of in futures]
    cg.set_num_threads(1)
    torch.set_num_threads(1)
    shares = [measured(one, of) for one, of in zip(chosen, kernels)]
    for name in shares[0]:
        values = np.array([each[name] for each in shares])
        print(f"{name:18} geometric mean {np.exp(np.log(values).mean()):.3f}, largest {values.max():.3f}")


def _with(gradient: LayerGradient, option: Epilogue) -> Any:
    return replace(gradient.problem, epilogue=option)


def measured(gradient: LayerGradient, kernels: dict[str, Kernel]) -> dict[str, float]:
    """The share of the time of the gradient alone that each way takes; prints it."""
    ways = dict(_ways(gradient, kernels))
    for way in ways.values():
        way()
    once = _seconds(ways["alone"], 1)
    together, rounds = max(1, int(SHORT / once)), max(5, min(40, int(SECONDS / len(ways) / once)))
    names = list(ways)
    times = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else names[::-1]:
            times[name].append(_seconds(ways[name], together))
    shares = {name: float(np.median(np.array(of) / np.array(times["alone"]))) for name, of in times.items()}
    shown = ", ".join(f"{name} {share:.3f}" for name, share in shares.items() if name != "alone")
    print(f"{gradient.layer.name:28} {min(times['alone']) * 1e3:8.3f} ms: {shown}", flush=True)
    return shares


def _ways(gradient: LayerGradient, kernels: dict[str, Kernel]) -> Iterator[tuple[str, Call]]:
    """Calls by what they compute."""
    problem, random = gradient.problem, np.random.default_rng(0)

    def tensor(shape: tuple[int, ...]) -> Any:
        made = aligned_empty(shape, NUMPY_DTYPES[problem.dtype])
        made[...] = random.integers(-2, 3, shape)
        return made

    inputs, bias = [tensor(shape) for shape in problem.input_shapes], tensor(kernels["bias"].problem.bias_shape)
    for name, kernel in kernels.items():
        option, out = kernel.problem.epilogue, tensor(problem.output_shape)
        given = {"accumulate": option.accumulate, "bias_delta": bias if option.bias_delta else None}
        given |= {"bias": bias} if option.bias else {}
        yield name, lambda kernel=kernel, out=out, given=given: kernel(*inputs, out, **given)
    alone, total, result = kernels["alone"], *(tensor(problem.output_shape) for _ in range(2))
    sum_, added, delta = map(_in_torch, (total, result, inputs[problem.delta_input]))
    channel = delta.ndim - 1 if problem.data_format == "NXC" else 1
    axes = tuple(axis for axis in range(delta.ndim) if axis != channel)
    if gradient.kind == "forward":
        along = _in_torch(bias).view([-1 if axis == channel else 1 for axis in range(delta.ndim)])
        yield "bias apart", lambda: (alone(*inputs, result), added.add_(along))
        return
    yield "accumulate apart", lambda: (alone(*inputs, result), sum_.add_(added))
    yield "bias apart", lambda: (alone(*inputs, result), delta.sum(axes))


def _in_torch(array: Any) -> torch.Tensor:
    """The same memory as PyTorch's tensor; it does not take NumPy's bf16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _seconds(call: Call, times: int) -> float:
    """The mean of so many calls."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


if __name__ == "__main__":
    main()
