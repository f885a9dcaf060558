"""Whole training steps of networks in plain JAX, by XLA and by this package's kernels, in turn.

    python benchmarks/frameworks/jax_training.py mobilenet_v2 unet --threads 1 --algorithm auto

A step is the forward, all gradients of the mean square of the result, and stochastic gradient descent, as one program.
Shows milliseconds of the fastest step of each, the gain, and by how much of their norm the gradients of both differ,
which ends the program where it is more than rounding. Each takes its steps in pairs, as a training takes them one after
another: the next step gets the memory that the last one has released. A virtual machine may give memory that was free
for two seconds back to its host. XLA's step of mobilenet_v2 takes two seconds, and one of ours that came right after it
would wait 300 ms for its 318 MB.
The threads are as many as the CPUs that the process is pinned to. XLA takes minutes for a step of resnext_50.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = Any
MOST_ERROR = 0.02
"""Of the gradients of a whole network, whose norms and activations make more of differences in rounding."""


class Network:
    """The layers of one pass. The first pass, without filters, makes them; later ones take them in the same order."""

    def __init__(self, filters: list[Array] | None = None) -> None:
        self.made: list[Array] = []
        self._random = np.random.default_rng(0)
        self._given: Iterator[Array] | None = None if filters is None else iter(filters)

    def conv(self, x: Array, channels: int, kernel: int, stride: int = 1, groups: int = 1, relu: bool = True) -> Array:
        """A convolution whose channels are normalised, and a ReLU. `x` and the result are NHWC."""
        import jax
        from jax import lax

        shape = (kernel, kernel, x.shape[-1] // groups, channels)
        if self._given is None:
            scale = math.sqrt(2 / math.prod(shape[:3]))
            self.made.append(np.asarray(self._random.standard_normal(shape) * scale, np.float32))
        w = self.made[-1] if self._given is None else next(self._given)
        numbers: dict[str, Any] = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
        y = lax.conv_general_dilated(x, w, (stride, stride), [(kernel // 2, kernel // 2)] * 2, **numbers)
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        return jax.nn.relu(y) if relu else y


def mobilenet_v2(net: Network, x: Array) -> Array:
    """MobileNetV2 without its classifier."""
    x = net.conv(x, 32, 3, 2)
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, channels, count, first in blocks:
        for stride in (first, *[1] * (count - 1)):
            wide = x.shape[-1] * factor
            y = x if factor == 1 else net.conv(x, wide, 1)
            y = net.conv(net.conv(y, wide, 3, stride, wide), channels, 1, relu=False)
            x = x + y if y.shape == x.shape else y
    return net.conv(x, 1280, 1)


def resnext_50(net: Network, x: Array) -> Array:
    """ResNeXt-50 (32x4d) without its classifier."""
    from jax import lax

    x = net.conv(x, 64, 7, 2)
    x = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for width, count, first in ((128, 3, 1), (256, 4, 2), (512, 6, 2), (1024, 3, 2)):
        for stride in (first, *[1] * (count - 1)):
            y = net.conv(net.conv(net.conv(x, width, 1), width, 3, stride, 32), 2 * width, 1, relu=False)
            x = (x if y.shape == x.shape else net.conv(x, 2 * width, 1, stride, relu=False)) + y
    return x


def unet(net: Network, x: Array) -> Array:
    """A U-Net of four levels, the first with 32 channels."""
    import jax.numpy as jnp
    from jax import lax

    kept = []
    for channels in (32, 64, 128, 256):
        x = net.conv(net.conv(x, channels, 3), channels, 3)
        kept.append(x)
        x = lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = net.conv(net.conv(x, 512, 3), 512, 3)
    for there in reversed(kept):
        x = net.conv(jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), there.shape[-1], 3)
        x = jnp.concatenate([x, there], -1)
        x = net.conv(net.conv(x, there.shape[-1], 3), there.shape[-1], 3)
    return net.conv(x, 2, 1)


NETWORKS: dict[str, tuple[Callable[[Network, Array], Array], tuple[int, ...]]] = {
    "mobilenet_v2": (mobilenet_v2, (4, 224, 224, 3)),
    "resnext_50": (resnext_50, (1, 224, 224, 3)),
    "unet": (unet, (4, 128, 128, 3)),
}


def measure(name: str, rounds: int, algorithm: str) -> None:
    """Print a line about one network."""
    import jax
    import jax.numpy as jnp

    import tvmconvgrad.jax as cgj

    forward, shape = NETWORKS[name]
    x = jnp.asarray(np.random.default_rng(1).standard_normal(shape), np.float32)
    network = Network()
    jax.eval_shape(lambda x: forward(network, x), x)
    filters = [jnp.asarray(one) for one in network.made]

    def step(filters: list[Array], x: Array) -> list[Array]:
        gradients = jax.grad(lambda filters: jnp.square(forward(Network(filters), x)).mean())(filters)
        return [one - 1e-3 * gradient for one, gradient in zip(filters, gradients)]

    steps = {"theirs": jax.jit(step).lower(filters, x).compile()}
    with cgj.enabled(algorithm=algorithm):
        steps["ours"] = jax.jit(step).lower(filters, x).compile()
        after = {"ours": jax.block_until_ready(steps["ours"](filters, x))}  # which waits for the kernels
        count = sum(row.by == "tvmconvgrad" for row in cgj.report().rows), len(cgj.report().rows)
    best = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for who, program in steps.items():
            for _ in range(2):
                begin = time.perf_counter()
                after[who] = jax.block_until_ready(program(filters, x))
                best[who] = min(best[who], (time.perf_counter() - begin) * 1e3)
    moved = {who: np.concatenate([np.ravel(b - a) for a, b in zip(filters, found)]) for who, found in after.items()}
    error = np.linalg.norm(moved["ours"] - moved["theirs"]) / np.linalg.norm(moved["theirs"])
    if not error < MOST_ERROR:
        raise SystemExit(f"gradients differ by {error:.2g} of their norm, expected less than {MOST_ERROR}")
    gain = best["theirs"] / best["ours"]
    shown = f"{name:14} step {best['theirs']:9.1f} -> {best['ours']:8.1f} ms, gain {gain:.2f}"
    print(f"{shown}; ours {count[0]} of {count[1]}; gradients differ by {error:.1e}", flush=True)


def main() -> None:
    """Measure the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--algorithm", choices=("direct", "auto"), default="direct", help="of our kernels")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # before JAX counts CPUs
    for name in options.networks or NETWORKS:
        measure(name, options.rounds, options.algorithm)


if __name__ == "__main__":
    main()
