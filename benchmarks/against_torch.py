"""Our kernels beside PyTorch's convolution_backward, layer by layer; a ratio above 1 means that ours is faster.

    python benchmarks/against_torch.py resnet_50 --threads 1 --repeat 9

Each layer runs in turn with PyTorch in both of its layouts (contiguous, channels_last), in one process, on as many
threads, and its result must equal PyTorch's: the tensors are small integers. A line has the median of each, and the
ratio to PyTorch's faster layout: the median of the ratios of neighbouring runs, and how far they spread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import torch
from layers import SUITES, Layer

import tvmconvgrad as cg

Run = Callable[[], Any]
PAUSE = 0.01


def peers(layer: Layer, data: dict[str, torch.Tensor], wanted: str) -> list[Run]:
    """PyTorch's gradient in its two layouts."""
    mask = (wanted == "data", wanted == "filter", False)

    def peer(memory_format: torch.memory_format) -> Run:
        x, dy, w = (data[name].contiguous(memory_format=memory_format) for name in ("x", "dy", "w"))
        size = ([layer.stride] * 2, [layer.pad] * 2, [1, 1], False, [0, 0], layer.groups, mask)
        return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *size)[0 if mask[0] else 1]

    return [peer(torch.contiguous_format), peer(torch.channels_last)]


def ours(layer: Layer, data: dict[str, torch.Tensor], wanted: str, data_format: str) -> tuple[Run, cg.Kernel]:
    """Our gradient on NumPy arrays in NXC and XIO, or NCX and OIX."""
    nxc = data_format == "NXC"
    x, dy = (np.ascontiguousarray(data[name].permute(0, 2, 3, 1) if nxc else data[name]) for name in ("x", "dy"))
    w = np.ascontiguousarray(data["w"].permute(2, 3, 1, 0) if nxc else data["w"])
    past = (layer.output_size - 1) * layer.stride + layer.kernel - layer.size - layer.pad
    attributes: dict[str, Any] = {
        "strides": [layer.stride] * 2,
        "dilations": [1, 1],
        "pads_begin": [layer.pad] * 2,
        "pads_end": [max(past, 0)] * 2,
        "groups": layer.groups,
        "data_format": data_format,
        "filter_format": "XIO" if nxc else "OIX",
    }
    if wanted == "filter":
        inputs, op = (x, dy), cg.ConvolutionBackpropFilters(filter_shape=w.shape, **attributes)
    else:
        inputs, op = (dy, w), cg.ConvolutionBackpropData(output_shape=x.shape, **attributes)
    kernel = op.compile(inputs[0].shape, inputs[1].shape)
    out = kernel(*inputs)
    return lambda: kernel(*inputs, out=out), kernel


def check(result: Any, expected: torch.Tensor, wanted: str, data_format: str) -> None:
    """Raise unless our result is PyTorch's, element by element."""
    if data_format == "NXC":
        result = result.transpose(3, 2, 0, 1) if wanted == "filter" else result.transpose(0, 3, 1, 2)
    if not np.array_equal(result, expected.numpy()):
        raise SystemExit("the results differ")


def interleaved(runs: list[Run], repeat: int) -> list[list[float]]:
    """Seconds of each run, taken in turn; a first round is not counted.

    A pause goes before each: OpenMP's threads, and ours, wait actively for a while and would take the other's cores.
    After it, one run that is not timed wakes the threads up.
    """
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(repeat + 1):
        for run, record in zip(runs, times):
            time.sleep(PAUSE)
            run()
            begin = time.perf_counter()
            run()
            if turn:
                record.append(time.perf_counter() - begin)
    return times


def measure(layer: Layer, wanted: str, options: argparse.Namespace) -> float:
    """Print a layer's line; returns its ratio."""
    rng = np.random.default_rng(0)
    shapes = {
        "x": (options.minibatch, layer.channels, layer.size, layer.size),
        "dy": (options.minibatch, layer.filters, layer.output_size, layer.output_size),
        "w": (layer.filters, layer.channels // layer.groups, layer.kernel, layer.kernel),
    }
    data = {name: torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32)) for name, shape in shapes.items()}
    theirs = peers(layer, data, wanted)
    run, kernel = ours(layer, data, wanted, options.data_format)
    check(run(), theirs[0](), wanted, options.data_format)
    times = interleaved([run, *theirs], options.repeat)
    best = min(times[1:], key=median)
    ratios = sorted(b / a for a, b in zip(times[0], best))
    gflops = kernel.problem.flops / median(times[0]) / 1e9
    print(
        f"{layer.name:22} {wanted:6} {median(times[0]) * 1e3:8.2f} ms {gflops:6.0f} GFLOP/s | "
        f"PyTorch {median(best) * 1e3:8.2f} ms | ratio {median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )
    return median(ratios)


def main() -> None:
    """Measure a suite and print the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minibatch", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--data-format", choices=("NXC", "NCX"), default="NXC")
    options = parser.parse_args()
    cg.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    for wanted in ("filter", "data"):
        ratios = [measure(layer, wanted, options) for layer in SUITES[options.suite]]
        print(f"{wanted}: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}\n")


if __name__ == "__main__":
    main()
