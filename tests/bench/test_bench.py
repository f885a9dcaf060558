"""tvmconvgrad bench from end to end on two tiny layers, and what it says about wrong results and wrong words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tvmconvgrad.bench import variants
from tvmconvgrad.bench.workers import session
from tvmconvgrad.bench.workers.child import Child
from tvmconvgrad.cli import main

without_peers = pytest.mark.skipif(bool(variants.missing(variants.PEERS)), reason="oneDNN or PyTorch is not installed")
without_onednn = pytest.mark.skipif(bool(variants.missing(["onednn"])), reason="oneDNN is not installed")


def bench(*words: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, words)])


@without_peers
def test_from_end_to_end(layers_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # in which no title is broken
    files = ("--json", tmp_path / "found.json", "--plots", tmp_path / "plots")
    words = ("--rounds", 1, "--dtype", "f32", "--dtype", "bf16", "--ours-too", "NCX,f32")
    result = bench(layers_file, *words, *files)
    assert result.exit_code == 0, result.output
    assert "geometric means" in result.output
    assert "share of peak" in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["machine"]["threads"] == 1
    assert {"oneDNN", "PyTorch", "cpu", "target"} <= set(found["machine"])
    assert list(found["columns"]) == ["oneDNN plain", "oneDNN blocked", "PyTorch", "ours NCX,f32"]
    measured = [(entry["layer"], entry["dtype"], entry["kind"]) for entry in found["measurements"]]
    kinds = ("filters", "data", "forward")
    assert measured == [
        (layer, dtype, kind) for layer in ("dense", "up") for dtype in ("f32", "bf16") for kind in kinds
    ]
    operators = [entry["operator"] for entry in found["measurements"] if entry["kind"] == "forward"]
    assert operators == ["Convolution"] * 2 + ["ConvTranspose"] * 2
    groups = {(group["title"], group["operator"], group["dtype"]): group["count"] for group in found["summary"]}
    assert groups["tiny", "ConvTranspose", "bf16"] == 1
    for entry in found["measurements"]:
        assert not entry["differences"]
        assert {"ours", "ours NCX,f32"} <= set(entry["rounds"])
        if entry["dtype"] == "f32":
            assert len(entry["rounds"]) == 6
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {f"{kind}_{dtype}.png" for dtype in ("f32", "bf16") for kind in ("ratios_tiny", "roofline")}


class Spoiled(Child):
    """A worker that adds one to an element of each result."""

    kind = "ours"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().ask(request)
        if request.get("do") == "prepare" and self.variant.kind == self.kind:
            result = np.load(request["result"])
            result.flat[0] += 1
            np.save(request["result"], result)
        return answer


class SpoiledPeer(Spoiled):
    kind = "onednn"


def test_our_wrong_result_is_fatal(layers_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Child", Spoiled)
    result = bench(layers_file, "--peers", "none", "--rounds", 1, "--layer", "dense", "--only", "data")
    assert result.exit_code == 1
    assert "Error: wrong result: ours: 1 of 336 elements are wrong: at (0, 0, 0, 0)" in result.stderr


@without_onednn
def test_a_peers_wrong_result_is_marked(layers_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Child", SpoiledPeer)
    words = (layers_file, "--peers", "onednn", "--rounds", 1, "--layer", "dense", "--only", "data")
    result = bench(*words, "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert "! oneDNN plain: its result differs: 1 of 336 elements differ" in result.output
    (entry,) = json.loads((tmp_path / "found.json").read_text())["measurements"]
    assert set(entry["differences"]) == {"oneDNN plain", "oneDNN blocked"}


def test_our_failure_is_told(layers_file: Path) -> None:
    result = bench(layers_file, "--peers", "none", "--layer", "dense", "--ours-too", "schedule=none-such")
    assert result.exit_code == 1
    assert "Error: ours schedule=none-such: ValueError: schedule: " in result.stderr


def test_peers_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "missing", lambda names: [name for name in names if name == "torch"])
    result = bench("resnet_50")
    assert result.exit_code == 2
    assert result.stderr == (
        'Error: --peers: torch not installed: pip install "tvmconvgrad[bench]", or leave out by --peers none\n'
    )


def test_algorithms_beside_each_other() -> None:
    base = variants.ours("llvm -mcpu=x86-64-v3 -algorithm=auto")
    assert variants.ours_too("direct,NCX", base).target == "llvm -mcpu=x86-64-v3"
    assert variants.ours_too("auto", variants.ours("llvm -mcpu=x86-64-v3")).target == base.target
    assert variants.ours_too("untuned", base).target == base.target


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resnet-50"], "suite: 'resnet-50' is unknown (did you mean 'resnet_50'?)"),
        (["missing.json"], "missing.json: cannot be read: No such file or directory"),
        (["resnet_50", "--layer", "none"], "layer: no layer of resnet_50 has 'none' in its name"),
        (["resnet_50", "--peers", "mkl"], "--peers: 'mkl' is unknown"),
        (["resnet_50", "--peers", "none", "--ours-too", "f64"], "variant: 'f64' in 'f64' is unknown"),
        (
            ["resnet_50", "--peers", "none", "--ours-too", "f32,checkout=no/such"],
            "variant: checkout=no/such: expected a",
        ),
        (["resnet_50", "--peers", "none", "--threads", "100000"], "threads: got 100000, expected 1 to "),
        (
            ["resnet_50", "--peers", "none", "--json", "no/such/file"],
            "no/such/file: cannot be written: there is no",
        ),
        (["resnet_50", "--target", "rocm"], "target: kind 'rocm'"),
        (["resnet_50", "--target", "cuda -arch=sm_90"], "benchmarks/gpu.py measures those"),
    ],
)
def test_wrong_words(words: list[str], told: str) -> None:
    result = bench(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_command_imports_no_peer_and_no_compiler() -> None:
    program = "import sys, tvmconvgrad.cli; print({'torch', 'tvm', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
