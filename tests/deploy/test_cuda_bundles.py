"""Bundles for GPUs: what is in them, on which GPU they load, and their kernels on GPUs that are not there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import LAYERS, example
from tests.runtime.cuda.tensors import Foreign
from tests.support.building.compiling_here import compile_here
from tests.support.cases.case import assert_same
from tests.support.cases.layer import operator_of
from tests.support.gpu.driver import FakeGpus, patch_toolkit
from tests.support.gpu.libraries import aligned
from tvmconvgrad.bundles import registry
from tvmconvgrad.runtime.cuda.kernel import CudaKernel

SOME = [layer for layer in LAYERS if layer.name in ("pointwise", "up")]
TARGETS = ["cuda -arch=sm_80", "cuda -arch=sm_90"]
GRADIENTS = [gradient for layer in SOME for gradient in layer.gradients()]
NAMES = ["pointwise_filters", "pointwise_data", "up_filters", "up_data"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch_toolkit(patch, folder)
        compile_here(patch)
        return cg.build(SOME, folder / "bundle", name="some", targets=TARGETS)


@pytest.fixture
def bundle(built: Path, gpus: FakeGpus, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


def run(kernel: Any, place: int) -> None:
    first, second, expected = (aligned(array) for array in example(GRADIENTS[place]))
    out = Foreign(aligned(np.full_like(expected, np.nan)))
    kernel(Foreign(first), Foreign(second), out=out)
    assert_same(out.array, expected)


def test_a_file_for_each_kernel_and_architecture(bundle: Path) -> None:
    files = {f"{name}.{arch}.fatbin" for name in NAMES for arch in ("sm_80", "sm_90")}
    assert {path.name for path in bundle.iterdir()} == {*files, "manifest.json"}
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert (manifest["architecture"], manifest["library"]) == ("cuda", None)
    assert set(manifest["files"]) == files
    for kernel in manifest["kernels"]:
        assert [code["target"] for code in kernel["codes"]] == TARGETS
        assert all(code["launches"] for code in kernel["codes"])


@pytest.mark.parametrize(("there", "chosen"), [("sm_80", 0), ("sm_86", 0), ("sm_90", 1), ("sm_100", 1)])
def test_the_latest_code_that_runs_there(there: str, chosen: int, bundle: Path, gpus: FakeGpus) -> None:
    gpus.set_up(architecture=there)
    loaded = cg.load(bundle)
    assert str(loaded.target) == TARGETS[chosen]
    assert list(loaded) == NAMES
    for place, name in enumerate(NAMES):
        assert isinstance(loaded[name], CudaKernel)
        run(loaded[name], place)


def test_another_gpu(bundle: Path, gpus: FakeGpus) -> None:
    gpus.set_up(architecture="sm_75")
    with pytest.raises(cg.BundleError, match="no code for this GPU, which is sm_75: it has code for sm_80, sm_90"):
        cg.load(bundle)


def test_no_gpu(bundle: Path) -> None:
    code = "import sys, tvmconvgrad as cg\ntry: cg.load(sys.argv[1])\nexcept cg.BundleError as error: print(error)"
    environment = {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(cg.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, bundle], capture_output=True, text=True, env=environment)
    assert "it is for NVIDIA GPUs (sm_80, sm_90), and this machine has no" in done.stdout, done.stderr


def test_operators_find_them_for_gpu_tensors_alone(
    bundle: Path, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_used", ())
    monkeypatch.setattr(registry, "_allowed", None)
    cg.use(bundle, build=False)
    operator = operator_of(GRADIENTS[0])
    run(operator, 0)
    run(lambda *inputs, out: operator(*inputs, out=out, target="cuda -arch=sm_90"), 0)
    first, second, _ = example(GRADIENTS[0])
    with pytest.raises(cg.MissingKernel, match="in no bundle in use"):
        operator(first, second)
    with pytest.raises(cg.MissingKernel, match=r"--target 'cuda -arch=sm_80'"):
        run(lambda *inputs, out: operator(*inputs, out=out, target="cuda -arch=sm_80"), 0)


Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["kernels"][0]["codes"][0]["launches"][0].update(grid=[0, 1, 1]), r"grid: got \[0, 1, 1\]"),
        (lambda c: c["kernels"][0]["codes"][0]["launches"][0].update(block=[32]), "block: .*three ints from 1"),
        (lambda c: c["kernels"][0]["codes"][0]["launches"][0].update(arguments=["first", -1]), "-1 is not from 0"),
        (lambda c: c["kernels"][0]["codes"][0]["launches"][0].update(arguments=["third"]), "'third'"),
        (lambda c: c["kernels"][0]["codes"][0]["launches"][0].update(function="a b"), "function: 'a b' is no ident"),
        (lambda c: c["kernels"][0]["codes"][0].update(file="../x"), "file: '../x' is no plain name"),
        (lambda c: c["kernels"][0]["codes"][0].update(file="other"), "'other' is not among its files"),
        (lambda c: c.update(architecture="x86_64"), "does not go with architecture 'x86_64'"),
        (lambda c: c.update(library="libsome.so"), "'libsome.so' is not among its files"),
        (lambda c: c["targets"][0].update(target="cuda -arch=90"), "arch is '90'"),
    ],
)
def test_wrong_manifests(change: Change, words: str, bundle: Path) -> None:
    path = bundle / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(cg.BundleError, match=words):
        cg.load(bundle)


def test_a_file_that_has_changed(bundle: Path) -> None:
    path = bundle / "up_data.sm_80.fatbin"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(cg.BundleError, match=r"up_data\.sm_80\.fatbin has changed: its SHA-256"):
        cg.load(bundle)
