"""How much faster kernels are where a target allows Winograd's algorithm, beside our own direct sums.

    python benchmarks/algorithms.py --threads 1 [--dtype bf16] [--data-format NCX] [SUITE ..]

All gradients of the suites that take it are timed in turn with direct sums: the least of several rounds each. Kernels
are untuned.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import geometric_mean

import numpy as np

import tvmconvgrad as cg
from tvmconvgrad.kernels import get_kernel
from tvmconvgrad.layers import SUITES, LayerGradient
from tvmconvgrad.layers.suites import suite
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES

TARGETS = ("llvm -mcpu=native", "llvm -mcpu=native -algorithm=auto")
ROUND_SECONDS = 8e-3
"""A round calls a kernel for about so long."""


def main() -> None:
    """Print a line for each gradient, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--data-format", default="NXC")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("suites", nargs="*")
    given = parser.parse_args()
    cg.set_num_threads(given.threads)
    ratios: dict[str, list[float]] = {"filters": [], "data": []}
    for name, gradient in gradients(given.data_format, given.dtype, given.suites or list(SUITES)):
        direct, auto = (get_kernel(gradient.problem, parse_target(target), tuned=False) for target in TARGETS)
        if not auto.schedule.startswith("winograd"):
            continue
        one, two = timed(gradient, (direct, auto), given.rounds)
        ratios[gradient.kind].append(one / two)
        share = auto.workspace_bytes / gradient.problem.tensor_bytes
        print(
            f"{name:40}{gradient.kind:8}{1e3 * one:9.2f} ms{1e3 * two:9.2f} ms{one / two:6.2f}  workspace {share:.2f}"
        )
    for kind, found in ratios.items():
        if found:
            print(f"{kind}: {len(found)} gradients, geometric mean {geometric_mean(found):.2f}, least {min(found):.2f}")


def gradients(data_format: str, dtype: str, suites: list[str]) -> Iterator[tuple[str, LayerGradient]]:
    """All distinct gradients of the suites, with their names."""
    seen = set()
    for entry in suites:
        for layer in suite(entry):
            for gradient in layer.gradients(data_format, dtype=dtype):
                if gradient.problem.key not in seen:
                    seen.add(gradient.problem.key)
                    yield f"{entry}/{layer.name}", gradient


def timed(gradient: LayerGradient, kernels: tuple[cg.Kernel, cg.Kernel], rounds: int) -> list[float]:
    """Seconds of a call of each kernel, the least of all rounds, in which they take turns."""
    rng, dtype = np.random.default_rng(0), NUMPY_DTYPES[gradient.dtype]
    first, second = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in gradient.shapes)
    out = np.zeros(gradient.problem.output_shape, dtype)
    best = [np.inf] * len(kernels)
    for _ in range(rounds + 1):
        for place, kernel in enumerate(kernels):
            calls = 1 if best[place] == np.inf else max(1, int(ROUND_SECONDS / best[place]))
            begin = time.perf_counter()
            for _ in range(calls):
                kernel(first, second, out)
            best[place] = min(best[place], (time.perf_counter() - begin) / calls)
    return best


if __name__ == "__main__":
    main()
