"""Bundles of kernels that accumulate, give the bias gradient, add a bias, and have results in f32."""

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


BIAS_PROGRAM = """
#include "forward.h"
#include <stdio.h>

int main(void) {
    static float first[FORWARD_POINTWISE_BIAS_FORWARD_OUTPUT_DELTA_SIZE];
    static float second[FORWARD_POINTWISE_BIAS_FORWARD_FILTER_SIZE];
    static float result[FORWARD_POINTWISE_BIAS_FORWARD_INPUT_DELTA_SIZE];
    float bias[FORWARD_POINTWISE_BIAS_FORWARD_BIAS_SIZE];
    size_t i;
    for (i = 0; i < sizeof first / sizeof *first; ++i) first[i] = 1;
    for (i = 0; i < sizeof second / sizeof *second; ++i) second[i] = 2;
    for (i = 0; i < sizeof bias / sizeof *bias; ++i) bias[i] = (float)i;
    if (forward_pointwise_bias_forward(first, second, result, bias, NULL, 0)) return 1;
    if (!forward_pointwise_bias_forward(first, second, result, NULL, NULL, 0)) return 2;
    if (!forward_pointwise_bias_forward(first, second, result, result, NULL, 0)) return 3;
    if (forward_pointwise_bias_forward(first, second, result, first, NULL, 0)) return 4; /* both are read */
    if (forward_get_kernel(0)->bias_bytes != sizeof bias) return 5;
    if (forward_get_kernel(0)->run(first, second, result, bias, NULL, 0)) return 6;
    printf("%g %g\\n", result[0], result[47]);
    return 0;
}
"""


def test_a_forward_with_bias(tmp_path: Path) -> None:
    folder, source, program = tmp_path / "forward", tmp_path / "program.c", tmp_path / "program"
    build(LAYERS[1:2], folder, name="forward", only="forward", bias=True)
    (kernel,) = cg.load(folder).values()
    x, w = (np.ones(shape, np.float32) for shape in kernel.problem.input_shapes)
    bias = np.arange(48, dtype=np.float32)
    assert np.array_equal(kernel(x, w, bias=bias)[0, 0, 0], 32 + bias)
    source.write_text(BIAS_PROGRAM)
    words = [compiler(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-restrict", f"-I{folder}", f"-L{folder}"]
    linked = ["-lforward", f"-Wl,-rpath,{folder}", "-o", str(program)]
    for each in (source, folder / "example.c"):
        subprocess.run([*words, str(each), *linked], check=True)
        done = subprocess.run([program], capture_output=True, text=True, check=True)
        assert done.stdout == "64 111\n" or "checksum" in done.stdout


def test_a_filter_has_no_bias(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bias: a filter's gradient has none"):
        build(LAYERS[1:2], tmp_path / "bundle", bias=True)
