"""tvmconvgrad run: results in files, judged by the tests' own reference; what --check says; every kind of bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.cases import layouts
from tests.support.cases.case import DTYPES, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.oracles import reference

CONV = Convolution(2, 2, 4, 6, (7, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
CASES = [
    Case("ConvolutionBackpropFilters", CONV),
    Case("ConvolutionBackpropData", CONV, "NCX", "OIX", new_names=True),
    Case("ConvTransposeBackpropFilters", CONV, filter_format="IOX", new_names=True),
    Case("ConvTransposeBackpropData", CONV, dtype="f16", shape_by="not"),
    Case("ConvolutionBackpropFilters", CONV, dtype="bf16"),
]
SHAPES = ("--shapes", "1,6,6,2", "1,6,6,3", "--auto-pad", "same_upper")
FILTERS = ("run", "ConvolutionBackpropFilters", *SHAPES, "--filter-shape", "3,3,2,3")


def spelled(attributes: dict[str, Any]) -> list[str]:
    """Attributes as options."""
    words = []
    for name, value in attributes.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [f"--{name.replace('_', '-')}", text]
    return words


@pytest.mark.parametrize("case", CASES, ids=str)
def test_files_in_and_out(case: Case, tmp_path: Path, invoke: Any) -> None:
    tensors = operands(CONV, case.result)
    files = [tmp_path / "first.npy", tmp_path / "second.npy", tmp_path / "result.npy"]
    for file, array in zip(files[:2], case.arrays(tensors), strict=True):
        np.save(file, array)
    options = ["--out", files[2], "--check", "--repeat", 2]
    result = invoke("run", case.call.operator, *files[:2], *spelled(case.attributes), *options)
    assert result.exit_code == 0, result.output
    assert "right: equal to the definition" in result.stdout

    saved = np.load(files[2])
    saved = saved.view(ml_dtypes.bfloat16) if case.dtype == "bf16" else saved
    assert saved.dtype == DTYPES[case.dtype]
    expected = reference.gradient(CONV, case.result, tensors).astype(DTYPES[case.dtype])
    assert_same(layouts.to_canonical(saved, case.axes(case.result)), expected)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_random_tensors_of_given_shapes(dtype: str, invoke: Any) -> None:
    result = invoke(*FILTERS, "--dtype", dtype, "--check", "--repeat", 1)
    assert result.exit_code == 0, result.output
    facts = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert facts["result"] == f"filter_delta (3, 3, 2, 3) {dtype}"
    assert facts["check"] == "right: equal to the definition"
    assert facts["speed"].endswith("GFLOP/s")
    assert {"problem", "target", "schedule", "workspace", "time"} <= facts.keys()


def test_fractions_are_judged_by_what_rounding_allows(tmp_path: Path, invoke: Any) -> None:
    rng = np.random.default_rng(3)
    np.save(tmp_path / "y.npy", rng.standard_normal((2, 30, 30, 4), np.float32))
    np.save(tmp_path / "x.npy", rng.standard_normal((2, 30, 30, 4), np.float32))
    words = ("--auto-pad", "same_lower", "--filter-shape", "3,3,4,4", "--check")
    result = invoke("run", "ConvolutionBackpropFilters", tmp_path / "y.npy", tmp_path / "x.npy", *words)
    assert result.exit_code == 0, result.output
    assert "right: off by up to" in result.stdout


@pytest.mark.parametrize("exact", [True, False])
def test_a_wrong_result_is_found(exact: bool, invoke: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tvmconvgrad.runtime.kernel import Kernel

    run = Kernel.__call__

    def disturbed(self: Kernel, *tensors: Any) -> Any:
        result = run(self, *tensors)
        result[1, 2, 0, 1] += 1
        return result

    monkeypatch.setattr(Kernel, "__call__", disturbed)
    words: tuple[Any, ...] = FILTERS
    if not exact:
        rng = np.random.default_rng(0)
        for name, channels in (("y", 2), ("x", 3)):
            np.save(tmp_path / f"{name}.npy", rng.standard_normal((1, 6, 6, channels), np.float32))
        files = (tmp_path / "y.npy", tmp_path / "x.npy")
        words = ("run", FILTERS[1], *files, "--auto-pad", "same_upper", "--filter-shape", "3,3,2,3")
    result = invoke(*words, "--check")
    assert result.exit_code == 1
    assert "WRONG in 1 of 54 elements" in result.stdout


def test_an_empty_sum_is_zero(invoke: Any) -> None:
    shapes = ("--shapes", "0,6,6,2", "0,6,6,3", "--auto-pad", "same_upper", "--filter-shape", "3,3,2,3")
    result = invoke("run", "ConvolutionBackpropFilters", *shapes, "--check")
    assert result.exit_code == 0, result.output
    assert "right" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run",), "Missing argument 'OPERATOR'."),
        (("run", "Convolution", *SHAPES), "'Convolution' is not one of 'ConvolutionBackpropFilters', "),
        (("run", "ConvolutionBackpropData"), "two .npy files or --shapes are needed, one of these"),
        ((*FILTERS[:5],), "pads_begin: missing; required when auto_pad is none"),
        ((*FILTERS[:7],), "filter_shape: missing; give it as attribute or as third input"),
        ((*FILTERS, "--strides", "2,q"), "'2,q' is no list of ints, expected for example 3,3"),
        ((*FILTERS, "--strides", "0,1"), "strides: got 0 in (0, 1), expected a positive int"),
        ((*FILTERS, "--groups", "4"), "input_forward: shape (1, 6, 6, 2) does not fit: axis 3"),
        ((*FILTERS, "--weights-shape", "3,3,2,3"), "two spellings of one attribute"),
        ((*FILTERS, "--output-padding", "1,1"), "unknown attribute 'output_padding'"),
        ((*FILTERS, "--data-format", "NHWC"), "data_format: got 'NHWC', expected 'NXC' or 'NCX'"),
        ((*FILTERS, "--dtype", "f64"), "'f64' is not one of 'f32', 'f16', 'bf16'"),
        ((*FILTERS, "--target", "rocm"), "target: kind 'rocm' in 'rocm' is not supported"),
        ((*FILTERS, "--target", "llvm -mcpu=pentium9"), "target: mcpu 'pentium9'"),
        ((*FILTERS, "--schedule", "magic"), "schedule: 'magic' is unknown"),
        ((*FILTERS, "--threads", "0"), "num_threads: "),
        ((*FILTERS, "--repeat", "0"), "0 is not in the range x>=1"),
        ((*FILTERS, "--out", "missing/result.npy"), "missing/result.npy: cannot be written"),
        ((*FILTERS, "--no-such-option"), "No such option"),
        (("run", "ConvolutionBackpropFilters", "--shapes", "1,-6,6,2", "1,6,6,3"), "--shapes: got -6 in (1, -6, 6, 2)"),
        (("run", "ConvolutionBackpropFilters", "--shapes", f"1,{10**20}", "1,6"), "expected at most 2**63 - 1"),
        (("run", "ConvolutionBackpropFilters", "--shapes", "2", "3", "--auto-pad", "valid"), "input_forward: "),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, fails: Any) -> None:
    assert message in fails(*words)


def test_errors_use_the_callers_names(fails: Any) -> None:
    words = (*SHAPES, "--weights-shape", "3,3,5,3")
    assert "weights_shape: shape (3, 3, 5, 3)" in fails("run", "ConvolutionBackwardWeights", *words)


def test_bad_files(tmp_path: Path, fails: Any) -> None:
    good, text, double, integers = (tmp_path / f"{name}.npy" for name in ("good", "text", "double", "integers"))
    np.save(good, np.zeros((1, 6, 6, 2), np.float32))
    np.save(double, np.zeros((1, 6, 6, 2)))
    np.save(integers, np.zeros((1, 6, 6, 2), np.int8))
    text.write_text("not an array")
    run = ("run", "ConvolutionBackpropFilters", "--auto-pad", "valid", "--filter-shape", "3,3,2,2")
    assert "expected two .npy files, the operator's inputs, got 1" in fails(*run, good)
    assert "does not exist" in fails(*run, good, tmp_path / "missing.npy")
    assert f"{text}: " in fails(*run, good, text)
    assert f"{double}: float64 is not supported, expected f32, f16 or bf16" in fails(*run, good, double)
    half = tmp_path / "half.npy"
    np.save(half, np.zeros((1, 6, 6, 2), np.float16))
    assert "output_delta: is float16, but input_forward is float32" in fails(*run, good, half)
    assert "int8" in fails(*run, integers, integers)
    assert "--dtype goes with --shapes" in fails(*run, good, good, "--dtype", "f16")
    assert "one of these" in fails(*run, good, good, "--shapes", "1,6,6,2", "1,6,6,2")


def test_a_shared_cache_folder_is_refused(tmp_path: Path, fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(shared))
    for words in ((*FILTERS[:3], "1,5,5,2", "1,5,5,3", *FILTERS[5:]), ("cache", "list")):
        assert "can be written to by other users" in fails(*words)


def test_a_missing_linker_is_explained(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "install gcc or clang" in fails(*FILTERS[:3], "1,4,4,2", "1,4,4,3", *FILTERS[5:])
