"""benchmarks/results.py: the page is what the files say, and a run is kept as it was measured."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results() -> ModuleType:
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("results", ROOT / "benchmarks" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_written_by_the_script(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """RESULTS.md has not been edited: change results/notes.md instead, and run benchmarks/results.py."""
    monkeypatch.setattr(results, "draw", lambda run, path: None)
    assert results.page() == results.PAGE.read_text()


def test_run_is_condensed(results: ModuleType) -> None:
    """Two gradients by hand: PyTorch counts with the layout whose median is less, and a refusal leaves no ratio."""
    entry = {
        "suite": "s", "layer": "a", "kind": "data", "operator": "ConvolutionBackpropData", "dtype": "f32",
        "is_depthwise": False, "is_stem": False, "is_wide": True, "workspace_bytes": 8, "tensor_bytes": 10**10,
        "problem": "a", "schedule": "b", "flops": 10**11,
        "rounds": {"ours": [2.0, 2.0, 4.0], "PyTorch NCX": [9.0, 9.0, 9.0], "PyTorch NXC": [3.0, 4.0, 8.0]},
    }  # fmt: skip
    other = {**entry, "layer": "b", "rounds": {"ours": [1.0, 1.0, 1.0]}}
    bench = {
        "command": "bench", "machine": {"target": "llvm", "threads": 1, "PyTorch": "2"}, "measurements": [entry, other],
        "roof": {"gflops": 100.0, "gigabytes": 10.0}, "columns": {"PyTorch": ["PyTorch NCX", "PyTorch NXC"]},
    }  # fmt: skip
    run = results.condensed(bench)
    first, second = run["gradients"]
    assert (first["ratios"], second["ratios"]) == ({"PyTorch": [2.0, 1.5, 2.0]}, {})
    assert first["kinds"] == ["wide"]
    assert [(one["ms"], one["gflops"], one["intensity"]) for one in (first, second)] == [(2e3, 50, 10), (1e3, 100, 10)]
    rows = list(results.means(run))
    share = f"{math.sqrt(0.5 * 1.0):.0%}"
    assert f"| ConvolutionBackpropData, all | 2 | 2.00 (least 2.00, s/a) | {share} |" in rows


def test_files_keep_a_line_a_gradient(results: ModuleType) -> None:
    """So that versions of a file can be compared line by line."""
    files = sorted(results.FOLDER.glob("*.json"))
    assert files
    for path in files:
        found = json.loads(path.read_text())
        gradients = sum(len(run["gradients"]) for run in found["runs"])
        assert len(path.read_text().splitlines()) == gradients + 1
