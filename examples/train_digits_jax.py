"""Train a small ResNet on scikit-learn's handwritten digits in plain JAX, by XLA and with this package's kernels.

    pip install -e ".[jax,examples]"
    python examples/train_digits_jax.py

Prints for each the accuracy on digits that were held back, and the seconds that training took, then who computed what.
The first run also builds kernels; run it twice.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sklearn.datasets import load_digits

import tvmconvgrad.jax as cgj

BATCH, HELD_BACK = 64, 360
RATE, MOMENTUM = 0.05, 0.9
CHANNELS = ((1, 32), (32, 32), (32, 32), (32, 64), (64, 64), (64, 64))
Parameters = dict[str, Any]


def make_parameters(key: Any) -> Parameters:
    """The filters of six convolutions, each with a scale and a shift for its channels, and a last matrix."""
    keys = jax.random.split(key, len(CHANNELS) + 1)
    layers = [
        {
            "filter": jax.random.normal(one, (3, 3, inputs, outputs)) * (2 / (9 * inputs)) ** 0.5,
            "scale": jnp.ones(outputs),
            "shift": jnp.zeros(outputs),
        }
        for one, (inputs, outputs) in zip(keys, CHANNELS)
    ]
    return {"layers": layers, "last": jax.random.normal(keys[-1], (64, 10)) * 0.1}


def layer(x: Any, parameters: Parameters, stride: int = 1) -> Any:
    """A 3x3 convolution whose channels are normalised over batch and image."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, parameters["filter"], (stride, stride), "SAME", dimension_numbers=numbers)
    y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
    return y * parameters["scale"] + parameters["shift"]


def scores(parameters: Parameters, images: Any) -> Any:
    """Ten scores of each image of 8x8 pixels."""
    first, one, two, strided, three, four = parameters["layers"]
    x = jax.nn.relu(layer(images, first))
    x = jax.nn.relu(x + layer(jax.nn.relu(layer(x, one)), two))
    x = jax.nn.relu(layer(x, strided, stride=2))
    x = jax.nn.relu(x + layer(jax.nn.relu(layer(x, three)), four))
    return x.mean((1, 2)) @ parameters["last"]


def loss(parameters: Parameters, images: Any, labels: Any) -> Any:
    """The mean cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(parameters, images)), labels[:, None], 1).mean()


@partial(jax.jit, donate_argnums=(0, 1))
def step(parameters: Parameters, velocity: Parameters, images: Any, labels: Any) -> tuple[Parameters, Parameters]:
    """Stochastic gradient descent with momentum."""
    gradients = jax.grad(loss)(parameters, images, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, velocity, gradients)
    return jax.tree.map(lambda p, v: p - RATE * v, parameters, velocity), velocity


def train(images: Any, labels: Any, epochs: int) -> Parameters:
    """Parameters that have seen all images so many times."""
    parameters = make_parameters(jax.random.key(0))
    velocity = jax.tree.map(jnp.zeros_like, parameters)
    random = np.random.default_rng(0)
    for _ in range(epochs):
        order = random.permutation(len(images))
        for batch in order[: len(images) // BATCH * BATCH].reshape(-1, BATCH):
            parameters, velocity = step(parameters, velocity, images[batch], labels[batch])
    return jax.block_until_ready(parameters)


def main() -> None:
    """Train without the line, and with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("xla", "tvmconvgrad"), help="instead of both")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = jnp.asarray(digits.images[order, :, :, None] / 16, jnp.float32)
    labels = jnp.asarray(digits.target[order])
    for who in ("xla", "tvmconvgrad"):
        if options.only not in (None, who):
            continue
        if who == "tvmconvgrad":
            cgj.enable()  # the line
        begin = time.perf_counter()
        parameters = train(images[HELD_BACK:], labels[HELD_BACK:], options.epochs)
        seconds = time.perf_counter() - begin
        right = (scores(parameters, images[:HELD_BACK]).argmax(1) == labels[:HELD_BACK]).mean()
        print(f"{who}: {right:.1%} of {HELD_BACK} digits right, {seconds:.1f} s")
    if options.only != "xla":
        print(cgj.report())


if __name__ == "__main__":
    main()
