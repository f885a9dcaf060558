"""The script that checks and times kernels on a GPU (benchmarks/gpu.py), on the CPU: all but CUDA's events."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad as cg
from tvmconvgrad.layers import Layer
from tvmconvgrad.machines.targets import Target

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tvmconvgrad.bench.gpu import run  # noqa: E402 -- needs PyTorch
from tvmconvgrad.bench.gpu.timing import time_all  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
LAYERS = [
    Layer(name="same", batch=2, channels=8, filters=16, input_size=(9, 9), kernel=(3, 3), strides=(2, 2),
          pads_begin=(1, 1), pads_end=(1, 1)),
    Layer(name="uneven", batch=2, channels=4, filters=4, input_size=(8,), kernel=(4,), pads_begin=(1,), pads_end=(2,)),
    Layer(name="up", op="ConvTranspose", batch=2, channels=6, filters=4, input_size=(5, 6), kernel=(4, 4),
          strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
]  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cg.build(LAYERS, tmp_path_factory.mktemp("gpu") / "bundle", name="some", dtypes=["f32", "bf16"])


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconvgrad.bench.gpu import timing

    monkeypatch.setattr(timing.matrix_peak, "__defaults__", (64,))


def test_all_is_checked_and_measured(bundle: Path, script: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "results.json"
    assert script.main([str(bundle), "--device", "cpu", "--rounds", "2", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert len(found["checks"]) == len(found["measurements"]) == 12
    for name, checked in found["checks"].items():
        assert checked["exact_in"] == "f64"
        assert 0 < checked["error"] < (1e-6 if "f32" in name else 1e-2)  # a zero would mean: compared with itself
        assert checked["same_bits"]
        assert name in text
    by_layer = {(entry["layer"], entry["dtype"]): entry for entry in found["measurements"]}
    assert set(by_layer["same", "f32"]["rounds"]) == {"ours", "cuDNN NHWC", "cuDNN NCHW", "copy"}
    assert set(by_layer["uneven", "f32"]["refusals"]) == {"cuDNN NHWC", "cuDNN NCHW"}
    operators = {"ConvolutionBackpropFilters", "ConvolutionBackpropData", "ConvTransposeBackpropFilters"}
    assert {group["operator"] for group in found["summary"]} >= operators
    assert "12 of 12 kernels checked, 0 wrong" in text


def test_products_in_tf32(
    bundle: Path, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """They have a bound, a peak and means of their own, and cuDNN may take TF32, too."""
    monkeypatch.setattr(Target, "multiplied", lambda self, dtype: {"f32": "tf32"}.get(dtype, dtype))
    allowed = []

    def noting(*given: Any) -> Any:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return time_all(*given)

    monkeypatch.setattr(run, "time_all", noting)
    out = tmp_path / "results.json"
    words = [str(bundle), "--device", "cpu", "--rounds", "1", "--only", "same", "--json", str(out)]
    assert script.main(words) == 0
    found = json.loads(out.read_text())
    assert set(found["peaks_gflops"]) == {"tf32", "bf16"}
    assert {group["dtype"] for group in found["summary"]} == {"tf32", "bf16"}
    assert {name: entry["bound"] for name, entry in found["checks"].items() if "f32" in name.split("_")} == {
        "same_f32_filters": 1e-3,
        "same_f32_data": 1e-3,
    }
    assert sorted(allowed) == [False, False, True, True]


def test_a_wrong_kernel_is_found(bundle: Path, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from tvmconvgrad.runtime.kernel import Kernel

    call = Kernel.__call__
    wrong = {"some": 0}

    def broken(self: Kernel, first: Any, second: Any, out: Any = None) -> Any:
        result = call(self, first, second, out)
        wrong["some"] += 1
        if "up" in str(wrong) or self.problem.transposed:
            result.view(-1)[wrong["some"] % 2] *= 1.001  # other bits in each run, by little
        return result

    monkeypatch.setattr(Kernel, "__call__", broken)
    assert script.main([str(bundle), "--device", "cpu", "--check", "--only", "f32"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "WRONG" in line]
    assert len(lines) == 2
    assert all(line.startswith("up_f32_") and "relative error" in line for line in lines)


def test_bits_that_differ(script: Any) -> None:
    from tvmconvgrad.bench.gpu.checking import Checked

    assert Checked(1e-7, "f64", True, 1e-5).fault is None
    assert Checked(1e-7, "f64", False, 1e-5).fault == "its bits differ from run to run"
    assert Checked(float("nan"), "f64", True, 1e-5).fault is not None


def test_time_is_up(bundle: Path, script: Any, capsys: Any) -> None:
    assert script.main([str(bundle), "--device", "cpu", "--minutes", "0"]) == 0
    assert "0 of 12 kernels checked" in capsys.readouterr().out
