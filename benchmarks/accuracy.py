"""How far gradients are from their sums in float64: direct ones, and those by Winograd's algorithm.

    python benchmarks/accuracy.py

Relative errors in the Euclidean norm, of f32, for inputs drawn from a normal distribution; 3x3 layers, and data
gradients of 4x4 layers with stride 2.
"""

from __future__ import annotations

import numpy as np

import tvmconvgrad as cg
from tvmconvgrad.operators import Compiled
from tvmconvgrad.reference import reference

LAYERS = [(4, 56, 64), (4, 28, 128), (4, 14, 256), (2, 14, 512)]
"""Images, rows and columns, channels of x as of y."""

STRIDED = [(4, 32, 128, 256), (4, 16, 256, 512)]
"""Images, rows and columns of x, channels of x and of y."""

TARGETS = {"direct": "llvm -mcpu=native", "auto": "llvm -mcpu=native -algorithm=auto"}


def main() -> None:
    """Print one line for each layer and gradient."""
    rng = np.random.default_rng(1)
    print(f"{'layer':20}{'gradient':30}" + "".join(f"{name:>10}" for name in TARGETS) + f"{'ratio':>8}")
    for images, size, channels in LAYERS:
        data, weights = (images, size, size, channels), (3, 3, channels, channels)
        window = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
        gradients = [
            (cg.ConvolutionBackpropFilters(**window, filter_shape=weights), (data, data)),
            (cg.ConvolutionBackpropData(**window, output_shape=data), (data, weights)),
        ]
        for op, shapes in gradients:
            show(
                f"{images}x{size}x{size}x{channels}", op, *(rng.standard_normal(shape, np.float32) for shape in shapes)
            )
    for images, size, c, o in STRIDED:
        window = {"strides": (2, 2), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
        op = cg.ConvolutionBackpropData(**window, output_shape=(images, size, size, c))
        shapes = [(images, size // 2, size // 2, o), (4, 4, c, o)]
        show(f"{images}x{size}x{size}x{c}, {o}", op, *(rng.standard_normal(shape, np.float32) for shape in shapes))


def show(layer: str, op: Compiled, first: np.ndarray, second: np.ndarray) -> None:
    """Print one line."""
    found = errors(op, first, second)
    shown = "".join(f"{error:10.1e}" for error in found)
    print(f"{layer:20}{type(op).__name__:30}{shown}{found[1] / found[0]:8.2f}")


def errors(op: Compiled, first: np.ndarray, second: np.ndarray) -> list[float]:
    """The relative error with each target."""
    kernels = [op.compile(first.shape, second.shape, target=target, tuned=False) for target in TARGETS.values()]
    exact = reference(kernels[0].problem, first.astype(np.float64), second.astype(np.float64))
    return [float(np.linalg.norm(kernel(first, second) - exact) / np.linalg.norm(exact)) for kernel in kernels]


if __name__ == "__main__":
    main()
