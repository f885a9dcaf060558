"""Convolutions under jax.jit, by XLA and by this package's kernels, in turn: the three sums of the suites' layers.

    python benchmarks/frameworks/jax_convolutions.py --threads 1 --layout NHWC

Each sum is a program of its own, whose fastest call counts. Shows geometric means of XLA's time over ours, of all
layers, of dense ones and of those with groups, the slowest ones, and with --errors the largest of our errors over
XLA's, both beside XLA's sum in float64. The threads are as many as the CPUs that the process is pinned to: both take
as many.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tvmconvgrad.layers import SUITES, Layer, suite

SECONDS = 0.3
"""How long each of both is measured in a round, or one call if that takes longer."""
PARTS = ("forward", "data gradient", "weights gradient")


def forward_of(layer: Layer, layout: str) -> Callable[[Any, Any], Any]:
    """A layer as a function of its input and its filter."""
    from jax import lax

    letters = "DHW"[-layer.rank :]
    last = layout == "NHWC"
    data = f"N{letters}C" if last else f"NC{letters}"
    numbers: dict[str, Any] = {
        "dimension_numbers": (data, f"{letters}IO" if last else f"OI{letters}", data),
        "feature_group_count": layer.groups,
        "rhs_dilation": layer.dilations,
    }
    pads = list(zip(layer.pads_begin, layer.pads_end))
    if layer.transposed:
        reach = [(k - 1) * d for k, d in zip(layer.kernel, layer.dilations)]
        more = layer.output_padding
        pads = [(r - begin, r - end + extra) for r, (begin, end), extra in zip(reach, pads, more)]
        numbers["lhs_dilation"] = layer.strides
        return lambda x, w: lax.conv_general_dilated(x, w, [1] * layer.rank, pads, **numbers)
    return lambda x, w: lax.conv_general_dilated(x, w, layer.strides, pads, **numbers)


def tensors_of(layer: Layer, layout: str) -> tuple[Any, Any]:
    """A random input and filter."""
    import jax.numpy as jnp

    random = np.random.default_rng(0)
    inputs, outputs = layer.channels // layer.groups, layer.filters
    shapes: list[tuple[int, ...]] = [
        (layer.batch, *layer.input_size, layer.channels),
        (*layer.kernel, inputs, outputs),
    ]
    if layout == "NCHW":
        shapes = [(layer.batch, layer.channels, *layer.input_size), (outputs, inputs, *layer.kernel)]
    x, w = (jnp.asarray(random.standard_normal(shape), np.float32) for shape in shapes)
    return x, w


def programs(layer: Layer, layout: str) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The three sums, each as a function and its arguments."""
    import jax

    forward = forward_of(layer, layout)
    x, w = tensors_of(layer, layout)
    shape = jax.eval_shape(forward, x, w).shape
    g = jax.numpy.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)
    yield PARTS[0], forward, (x, w)
    yield PARTS[1], lambda x, w, g: jax.vjp(lambda x: forward(x, w), x)[1](g)[0], (x, w, g)
    yield PARTS[2], lambda x, w, g: jax.vjp(lambda w: forward(x, w), w)[1](g)[0], (x, w, g)


def fastest(program: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Seconds of the fastest call."""
    best, until = math.inf, time.perf_counter() + SECONDS
    while True:
        begin = time.perf_counter()
        program(*arguments).block_until_ready()
        end = time.perf_counter()
        best = min(best, end - begin)
        if end > until:
            return best


def measure(function: Callable[..., Any], arguments: tuple[Any, ...], rounds: int) -> tuple[float, float]:
    """Milliseconds of XLA and of ours. Ends the program if results differ by more than rounding."""
    theirs, ours = compiled(function, arguments)
    error = distance(ours(*arguments), theirs(*arguments))
    if not error < 1e-5:
        raise SystemExit(f"results differ by {error:.2g} of their norm")
    times = [(fastest(theirs, arguments), fastest(ours, arguments)) for _ in range(rounds)]
    return min(one for one, _ in times) * 1e3, min(one for _, one in times) * 1e3


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """XLA's program and ours. Ends the program if ours leaves anything to XLA."""
    import jax

    import tvmconvgrad.jax as cgj

    theirs = jax.jit(function).lower(*arguments).compile()
    with cgj.enabled():
        ours = jax.jit(function).lower(*arguments).compile()
        ours(*arguments)
        left = [row.why for row in cgj.report().rows if row.why]
    if left:
        raise SystemExit(f"left to XLA: {left[0]}")
    return theirs, ours


def errors(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """The relative errors of XLA and of ours, beside XLA's sum in float64."""
    import jax

    results = [program(*arguments) for program in compiled(function, arguments)]
    with jax.enable_x64(True):
        exact = jax.jit(function)(*(jax.numpy.asarray(np.asarray(one, np.float64)) for one in arguments))
    theirs, ours = (distance(one, exact) for one in results)
    return theirs, ours


def distance(found: Any, expected: Any) -> float:
    """The norm of the difference, relative to that of `expected`."""
    right = np.asarray(expected, np.float64)
    return float(np.linalg.norm(np.asarray(found, np.float64) - right) / np.linalg.norm(right))


def of_times(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: argparse.Namespace
) -> tuple[float, str]:
    """XLA's time over ours, and both in words."""
    theirs, ours = measure(function, arguments, options.rounds)
    return theirs / ours, f"{theirs:9.3f} -> {ours:8.3f} ms, gain {theirs / ours:7.2f}"


def of_errors(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, str]:
    """Our error over XLA's, and both in words."""
    theirs, ours = errors(function, arguments)
    return ours / theirs, f"{theirs:9.2g} -> {ours:8.2g}, {ours / theirs:7.2f} of XLA's"


def mean(gains: list[float]) -> str:
    """The geometric mean."""
    return f"{math.exp(sum(map(math.log, gains)) / len(gains)):6.2f}" if gains else "     -"


def main() -> None:
    """Measure the suites that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", help=", ".join(SUITES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layout", choices=("NHWC", "NCHW"), default="NHWC")
    parser.add_argument("--batch", type=int, help="instead of each layer's own")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--errors", action="store_true", help="measure errors, not times")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # before JAX counts CPUs
    found: dict[tuple[str, bool], list[float]] = {}
    slow: list[str] = []
    for name in options.suites or SUITES:
        for layer in suite(name, options.batch):
            for part, function, arguments in programs(layer, options.layout):
                ratio, words = (
                    of_errors(function, arguments) if options.errors else of_times(function, arguments, options)
                )
                line = f"{name} {layer.name:24} {part:17} {words}"
                print(line, flush=True)
                found.setdefault((part, layer.groups > 1), []).append(ratio)
                slow += [line] * (ratio > 2 if options.errors else ratio < 0.95)
    for part in PARTS:
        dense, grouped = found.get((part, False), []), found.get((part, True), [])
        print(f"{part:17} all {mean(dense + grouped)}, dense {mean(dense)}, with groups {mean(grouped)}")
    largest = max(max(ratios) for ratios in found.values())
    head = f"largest {largest:.2f}; above 2" if options.errors else "below 0.95"
    print(f"{head}: {len(slow)}", *slow, sep="\n")


if __name__ == "__main__":
    main()
