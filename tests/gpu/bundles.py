"""The bundles of the tests on GPUs, to be built where the compiler is:

python -m tests.gpu.bundles FOLDER [ARCHITECTURE...]        # by default sm_90 and sm_90a

then TVMCONVGRAD_GPU_BUNDLES=FOLDER python -m pytest -m gpu tests/gpu, on the machine with the GPU.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import tvmconvgrad as cg
from tvmconvgrad.layers import Layer, LayerGradient
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records import lookup  # like all here it imports no TVM
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing.merging import merged

DTYPES = ("f32", "f16", "bf16")
BUNDLES = {
    "nxc": ("NXC", DTYPES, ""),
    "ncx": ("NCX", DTYPES, ""),
    "tf32": ("NXC", ("f32",), " -fpmath_mode=tf32"),
    "ways": ("NXC", ("f16",), ""),
}
"""By name: layout, types, and what the targets ask for."""
LAYERS = [
    # dense: whole tiles of tensor cores, tails, strides, dilations, few channels
    Layer(name="whole", batch=4, channels=64, filters=128, input_size=(14, 14), kernel=(3, 3), pads_begin=(1, 1),
          pads_end=(1, 1)),
    Layer(name="tails", batch=3, channels=33, filters=50, input_size=(13, 11), kernel=(3, 2), pads_begin=(1, 0),
          pads_end=(1, 1)),
    Layer(name="strided", batch=2, channels=32, filters=64, input_size=(15, 14), kernel=(3, 3), strides=(2, 2),
          dilations=(1, 2), pads_begin=(1, 2), pads_end=(1, 2)),
    Layer(name="pointwise", batch=8, channels=256, filters=64, input_size=(14, 14), kernel=(1, 1)),
    Layer(name="stem", batch=2, channels=3, filters=64, input_size=(32, 32), kernel=(7, 7), strides=(2, 2),
          pads_begin=(3, 3), pads_end=(3, 3)),
    # groups, and channels of their own
    Layer(name="grouped", batch=2, channels=64, filters=96, input_size=(10, 10), kernel=(3, 3), groups=4,
          pads_begin=(1, 1), pads_end=(1, 1)),
    Layer(name="depthwise", batch=4, channels=96, filters=96, input_size=(28, 28), kernel=(3, 3), groups=96,
          strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    # one and three axes; the transposed operators
    Layer(name="line", batch=4, channels=48, filters=64, input_size=(200,), kernel=(5,), dilations=(3,),
          pads_begin=(6,), pads_end=(6,)),
    Layer(name="cube", batch=1, channels=16, filters=32, input_size=(6, 7, 8), kernel=(3, 3, 3),
          pads_begin=(1, 1, 1), pads_end=(1, 1, 1)),
    Layer(name="up", op="ConvTranspose", batch=2, channels=64, filters=32, input_size=(9, 9), kernel=(4, 4),
          strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
]  # fmt: skip


# Large tiles, and copies in every way: the defaults of layers as small as these have the smallest tiles.
WAYS = ("past_l1", "cached", "tma", "tma_multicast_b", "tma_multicast_a")
TILES = tuple(range(6))
SHAPES = {
    "square": Layer(name="square", batch=5, channels=256, filters=256, input_size=(13, 14), kernel=(3, 3),
                    pads_begin=(1, 1), pads_end=(1, 1)),
    "strided": Layer(name="strided", batch=4, channels=256, filters=256, input_size=(14, 15), kernel=(3, 3),
                     strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    "cube": Layer(name="cube", batch=2, channels=256, filters=256, input_size=(5, 6, 7), kernel=(3, 3, 3),
                  pads_begin=(1, 1, 1), pads_end=(1, 1, 1)),
    "line": Layer(name="line", batch=5, channels=256, filters=512, input_size=(100,), kernel=(5,), strides=(2,),
                  dilations=(3,), pads_begin=(6,), pads_end=(5,)),
}  # fmt: skip


def forced() -> list[tuple[Layer, dict[str, int]]]:
    """The layers of the bundle `ways`, and their numbers. A problem has one choice, so each has another batch."""
    found = []
    for shape, layer in SHAPES.items():
        for tile, way in itertools.product(TILES if shape == "square" else (2,), range(len(WAYS))):
            name, batch = f"{shape}_tile_{tile}_{WAYS[way]}", layer.batch + len(found)
            found.append((replace(layer, name=name, batch=batch), {"tile": tile, "copies": way}))
    return found


def layers(bundle: str) -> list[Layer]:
    """The layers of one bundle."""
    return [layer for layer, _ in forced()] if bundle == "ways" else LAYERS


def choose(problem: Problem, target: Target) -> lookup.Tuned:
    """What a log would say: the numbers of `forced`, where the target has them."""
    from tvmconvgrad import schedules

    for layer, numbers in forced():
        if any(merged(gradient.problem) == problem for gradient in layer.gradients("NXC", dtype=problem.dtype)):
            offered = schedules.schedule(problem, target, "gemm", {"tile": numbers["tile"]}).candidates
            if numbers["copies"] in offered.get("copies", ()):
                plan = str(schedules.schedule(problem, target, "gemm", numbers))
                return lookup.Tuned(Choice.of("gemm", numbers, plan), "forced")
    return lookup.Tuned(None, lookup.DEFAULT)


def gradients(bundle: str) -> dict[str, LayerGradient]:
    """The kernels of one bundle by their names."""
    data_format, dtypes, _ = BUNDLES[bundle]
    return {
        "_".join((layer.name, *([dtype] if len(dtypes) > 1 else ()), gradient.kind)): gradient
        for layer in layers(bundle)
        for dtype in dtypes
        for gradient in layer.gradients(data_format, dtype=dtype)
    }


def build(folder: Path, architectures: list[str]) -> None:
    """All bundles."""
    with mock.patch.object(lookup, "find", choose):
        for name, (data_format, dtypes, asked) in BUNDLES.items():
            targets = [f"cuda -arch={architecture}{asked}" for architecture in architectures]
            cg.build(layers(name), folder / name, name=name, targets=targets, dtypes=dtypes, data_format=data_format)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:] or ["sm_90", "sm_90a"])
