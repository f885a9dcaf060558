"""Bundles of kernels that accumulate, give the gradient by the bias, and have results in f32."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import LAYERS, compiler, example
from tvmconvgrad.deploy.api import build
from tvmconvgrad.kernels import get_kernel

PROGRAM = """
#include "options.h"
#include <stdio.h>
#include <string.h>

int main(void) {
    static uint16_t first[OPTIONS_POINTWISE_F32_ACCUMULATE_BIAS_DELTA_FILTERS_INPUT_FORWARD_SIZE];
    static uint16_t second[OPTIONS_POINTWISE_F32_ACCUMULATE_BIAS_DELTA_FILTERS_OUTPUT_DELTA_SIZE];
    static float result[OPTIONS_POINTWISE_F32_ACCUMULATE_BIAS_DELTA_FILTERS_FILTER_DELTA_SIZE], bias[48];
    size_t i;
    for (i = 0; i < sizeof second / 2; ++i) second[i] = 0x3F80; /* 1 */
    result[0] = 3;
    bias[1] = 5;
    if (options_pointwise_f32_accumulate_bias_delta_filters(first, second, result, bias, NULL, 0)) return 1;
    if (!options_pointwise_f32_accumulate_bias_delta_filters(first, second, result, NULL, NULL, 0)) return 2;
    if (!options_pointwise_f32_accumulate_bias_delta_filters(first, second, result, result, NULL, 0)) return 3;
    printf("%g %g %g\\n", result[0], bias[0], bias[1]);
    return 0;
}
"""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "options"
    how = {"dtypes": "bf16", "accumulate": True, "bias_delta": True, "result_dtype": "f32"}
    return build(LAYERS[1:2], folder, name="options", **how)  # type: ignore[arg-type]


def test_kernels_in_python(folder: Path) -> None:
    bundle = cg.load(folder)
    assert list(bundle) == [f"pointwise_f32_accumulate_bias_delta_{kind}" for kind in ("filters", "data")]
    for kernel, gradient in zip(bundle.values(), LAYERS[1].gradients(dtype="bf16")):
        first, second, _ = example(gradient)
        exact = get_kernel(gradient.problem)  # in bf16, and of sums that it holds
        out, bias = (np.ones(shape, np.float32) for shape in kernel.problem.output_shapes)
        kernel(first, second, out, accumulate=True, bias_delta=bias)
        delta = (first, second)[kernel.problem.delta_input].astype(np.float64)
        assert np.array_equal((out - 1).astype(first.dtype), exact(first, second))
        assert np.array_equal(bias, 1 + delta.sum((0, 1, 2)))
        assert bundle.find(gradient.problem) is None
        assert bundle.find(kernel.problem) is not None


def test_functions_in_c(folder: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    words = [
        compiler(),
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-restrict",
        f"-I{folder}",
        str(source),
        f"-L{folder}",
    ]
    subprocess.run([*words, "-loptions", f"-Wl,-rpath,{folder}", "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "3 98 103\n"  # 2 images of 7 x 7 positions


def test_the_example_program(folder: Path, tmp_path: Path) -> None:
    words = [compiler(), "-std=c99", "-Wall", "-Wextra", "-Werror", str(folder / "example.c"), f"-I{folder}"]
    program = tmp_path / "example"
    subprocess.run([*words, f"-L{folder}", "-loptions", f"-Wl,-rpath,{folder}", "-o", str(program)], check=True)
    assert "checksum" in subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_what_builds_a_missing_kernel(folder: Path) -> None:
    from tvmconvgrad.bundles.missing import how_to_build

    problem = cg.load(folder)["pointwise_f32_accumulate_bias_delta_filters"].problem
    text = how_to_build(problem, [])
    assert re.search("build missing.json --only filters --dtype bf16 .*--accumulate --bias-delta", text)
    assert "--result-dtype f32" in text
