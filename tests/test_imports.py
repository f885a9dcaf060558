"""The compiler is loaded only to compile: neither importing the package nor calling a kept kernel needs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

COMPILER = "{'tvm', 'tvmconvgrad.te', 'tvmconvgrad.schedules', 'tvmconvgrad.compiler.llvm'}"
CALL = """
import numpy as np
import tvmconvgrad as cg
op = cg.ConvolutionBackpropData(strides=(2,), dilations=(1,), pads_begin=(0,), pads_end=(0,))
result = op(np.ones((1, 3, 2), np.float32), np.ones((2, 1, 2), np.float32))
assert result.tolist() == [[[2.0]] * 6], result
"""


def loaded(program: str, folder: Path) -> str:
    """Which of the compiler's modules a program has loaded at its end."""
    report = f"\nimport sys\nprint(sorted({COMPILER} & set(sys.modules)))"
    environment = os.environ | {"TVMCONVGRAD_CACHE_DIR": str(folder)}
    words = [sys.executable, "-c", program + report]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.strip()


@pytest.mark.parametrize(
    "module",
    [
        "tvmconvgrad",
        "tvmconvgrad.cli",
        "tvmconvgrad.spec",
        "tvmconvgrad.reference",
        "tvmconvgrad.bench.report",
        "tvmconvgrad.records.lookup",
    ],
)
def test_imports_load_no_compiler(module: str, tmp_path: Path) -> None:
    assert loaded(f"import {module}", tmp_path) == "[]"


def test_building_a_bundle_loads_no_compiler(tmp_path: Path) -> None:
    layer = "cg.layers.Layer(name='tiny', batch=1, channels=2, filters=3, input_size=(4,), kernel=(1,))"
    build = f"import tvmconvgrad as cg, tvmconvgrad.layers\ncg.build([{layer}], {str(tmp_path / 'bundle')!r})"
    assert loaded(build, tmp_path / "cache") == "[]"
    assert (tmp_path / "bundle" / "manifest.json").exists()


def test_the_front_end_of_pytorch_loads_no_compiler(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
    assert loaded("import tvmconvgrad.torch as cgt; cgt.enable(); cgt.disable()", tmp_path) == "[]"


def test_the_front_end_of_jax_loads_no_compiler(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed (pip install jax)")
    assert loaded("import tvmconvgrad.jax as cgj; cgj.enable(); cgj.disable()", tmp_path) == "[]"


def test_what_imports_jax(tmp_path: Path) -> None:
    """Its front end alone, and of JAX's private modules one file."""
    package = Path(__file__).parents[1] / "tvmconvgrad"
    texts = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    imports = re.compile(r"^\s*(?:import|from) (?:jax|tvmconvgrad\.jax)\b", re.MULTILINE)
    assert {path.parts[0] for path, text in texts.items() if imports.search(text)} == {"jax"}
    assert {path.name for path, text in texts.items() if "jax._src" in text} == {"private.py"}


def test_what_imports_pytorch(tmp_path: Path) -> None:
    """The front end, what reads models, and what is measured beside it: all the rest needs none."""
    package = Path(__file__).parents[1] / "tvmconvgrad"
    imports = re.compile(r"^(?:import|from) (?:torch|tvmconvgrad\.torch)\b", re.MULTILINE)
    found = {path.relative_to(package).parts[0] for path in package.rglob("*.py") if imports.search(path.read_text())}
    assert found == {"torch", "layers", "bench"}


def test_neither_building_a_kernel_nor_calling_it_loads_the_compiler(tmp_path: Path) -> None:
    assert loaded(CALL, tmp_path) == "[]"
    assert list(tmp_path.glob("*.kernel"))
    assert loaded(CALL, tmp_path) == "[]"


def test_the_specification_needs_no_numpy(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "tvmconvgrad" / "spec"
    imported = [line for path in source.glob("*.py") for line in path.read_text().splitlines() if "import" in line]
    assert imported
    assert not [line for line in imported if line.startswith(("import numpy", "from numpy", "import tvm", "from tvm "))]
