"""Bundles to test, what their kernels must compute, and C programs that call them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.support.building.compilers import compiler
from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, ROLES
from tests.support.cases.convolution import Array, Convolution, Tensors, operands
from tests.support.cases.layer import convolution
from tests.support.oracles import reference
from tvmconvgrad.layers import Layer, LayerGradient
from tvmconvgrad.machines.host import host_architecture

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4") if host_architecture() == "x86_64" else ("native",)
TARGETS = [f"llvm -mcpu={level}" for level in LEVELS]
DTYPE_NAMES = ("f32", "f16")
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 300.0  # seconds: what takes longer hangs
STRICT = ("-Wall", "-Wextra", "-Werror")
Reference = Callable[[Convolution, str, Tensors], Array]

LAYERS = [
    Layer(name="dense 3x3", batch=2, channels=17, filters=25, input_size=(9, 8), kernel=(3, 3), pads_begin=(1, 1),
          pads_end=(1, 1)),
    Layer(name="pointwise", batch=2, channels=32, filters=48, input_size=(7, 7), kernel=(1, 1)),
    Layer(name="depthwise", batch=1, channels=32, filters=32, input_size=(9, 9), kernel=(3, 3), groups=32,
          pads_begin=(1, 1), pads_end=(1, 1)),
    Layer(name="up", op="ConvTranspose", batch=2, channels=8, filters=6, input_size=(5,), kernel=(4,), strides=(2,),
          pads_begin=(1,), pads_end=(1,), output_padding=(1,)),
    Layer(name="cube", batch=1, channels=3, filters=4, input_size=(4, 5, 6), kernel=(2, 1, 3)),
    Layer(name="wide", batch=16, channels=32, filters=32, input_size=(14, 14), kernel=(3, 3), pads_begin=(1, 1),
          pads_end=(1, 1)),
]  # fmt: skip


def example(gradient: LayerGradient, compute: Reference = reference.gradient) -> tuple[Array, Array, Array]:
    """Two inputs of integers, and the result that they must have, as a kernel takes and gives them."""
    conv, dtype = convolution(gradient.layer), DTYPES[gradient.dtype]
    inputs, result = ROLES[gradient.problem.operator]
    tensors = operands(conv, result)
    given = gradient.operator
    order = {
        name: layouts.permutation(gradient.problem.operator, name, given.data_format, given.filter_format, conv.rank)
        for name in "yxw"
    }
    first, second = (layouts.from_canonical(tensors[name], order[name]).astype(dtype) for name in inputs)
    wanted = layouts.from_canonical(compute(conv, result, tensors), order[result])
    # NumPy's f16 and ml_dtypes' bf16 round to nearest even, as the kernels do; f32 is exact
    return first, second, (np.ascontiguousarray(wanted, np.float32) + np.float32(0)).astype(dtype)


def write_examples(
    folder: Path, gradients: Mapping[str, LayerGradient], compute: Reference = reference.gradient
) -> None:
    """The files that check_kernels reads."""
    for name, gradient in gradients.items():
        for end, array in zip(("first", "second", "result"), example(gradient, compute)):
            (folder / f"{name}.{end}").write_bytes(np.ascontiguousarray(array).tobytes())


def check_program(
    bundle: Path,
    name: str,
    output: Path,
    *options: str,
    cc: str | None = None,
    static: bool = False,
    source: str = "check_kernels.c",
) -> None:
    """Build check_kernels, or another program of this folder, for a bundle."""
    library = [str(bundle / f"lib{name}.a")] if static else [f"-L{bundle}", f"-l{name}", f"-Wl,-rpath,{bundle}"]
    defines = [f'-DHEADER="{name}.h"', f"-DPREFIX={name}", f"-DCAPS={name.upper()}"]
    words = [cc or compiler(), "-std=gnu11", "-O1", "-g", *STRICT, *options, *defines, f"-I{bundle}", "-pthread"]
    run([*words, str(PROGRAMS / source), *library, "-lm", "-o", str(output)])


def run(command: Sequence[object], **environment: str) -> str:
    """What a command prints; it must end by itself, without an error and without a word on stderr."""
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, env=environment or None)
    assert done.returncode == 0, f"{words[0]}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
