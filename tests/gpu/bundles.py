"""The bundles of the tests on GPUs, to be built where the compiler is:

python -m tests.gpu.bundles FOLDER [ARCHITECTURE...]        # by default sm_90

then TVMCONVGRAD_GPU_BUNDLES=FOLDER python -m pytest -m gpu tests/gpu, on the machine with the GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tvmconvgrad as cg
from tvmconvgrad.layers import Layer, LayerGradient

DTYPES = ("f32", "f16", "bf16")
BUNDLES = {"nxc": ("NXC", DTYPES, ""), "ncx": ("NCX", DTYPES, ""), "tf32": ("NXC", ("f32",), " -fpmath_mode=tf32")}
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


def gradients(bundle: str) -> dict[str, LayerGradient]:
    """The kernels of one bundle by their names."""
    data_format, dtypes, _ = BUNDLES[bundle]
    return {
        f"{layer.name}_{dtype}_{gradient.kind}": gradient
        for layer in LAYERS
        for dtype in dtypes
        for gradient in layer.gradients(data_format, dtype=dtype)
    }


def build(folder: Path, architectures: list[str]) -> None:
    """All bundles."""
    for name, (data_format, dtypes, asked) in BUNDLES.items():
        targets = [f"cuda -arch={architecture}{asked}" for architecture in architectures]
        cg.build(LAYERS, folder / name, name=name, targets=targets, dtypes=dtypes, data_format=data_format)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2:] or ["sm_90"])
