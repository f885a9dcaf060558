"""docs/deployment.md from its first command to its last line, as a newcomer would follow it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.deploy.bundles import TARGETS, compiler
from tests.deploy.conftest import Built

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
BLOCKS = [
    re.sub(r"^    ", "", block, flags=re.MULTILINE)
    for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", TEXT, re.MULTILINE)
]
MODEL = """
from collections import OrderedDict
import torch
def make_model():
    return torch.nn.Sequential(OrderedDict(conv1=torch.nn.Conv2d(3, 8, 3, padding=1)))
"""
BEFORE = """
import numpy as np
input_forward, output_delta = np.ones((8, 224, 224, 3), np.float32), np.ones((8, 224, 224, 8), np.float32)
"""
OPERATOR = """
op = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 3, 8)
)
"""


def block(word: str) -> str:
    """The one block with a word in it."""
    (found,) = [one.strip() for one in BLOCKS if word in one]
    return found


@pytest.mark.slow
def test_a_newcomers_way(tmp_path: Path) -> None:
    compiler("cc")
    (tmp_path / "model.py").write_text(MODEL)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def shell(text: str) -> str:
        text = text.replace("tvmconvgrad ", f"{sys.executable} -m tvmconvgrad ")
        done = subprocess.run(["sh", "-ec", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    build = block('build layers.json --target "llvm -mcpu=x86-64-v3"')
    assert shell(build if len(TARGETS) > 1 else re.sub(r'--target ".*?" ', "", build))
    assert "checksum" in shell(block("example.c"))
    declaration = re.sub(r"\s+|[A-Z_]+RESTRICT", "", (tmp_path / "bundle" / "layers.h").read_text())
    assert re.sub(r"\s+", "", block("int layers_conv1_filters")) in declaration
    code = (
        BEFORE + block("cg.load") + OPERATOR + block("cg.use") + "\nprint(filter_delta.shape, filter_delta[1, 1].min())"
    )
    (tmp_path / "program.py").write_text(code)
    assert shell(f"{sys.executable} program.py") == f"(3, 3, 3, 8) {8 * 224 * 224:.1f}\n"


def test_every_file_is_told_of(built: Built) -> None:
    for path in built.folder.iterdir():
        assert f"`{path.name.replace('small', 'layers')}`" in TEXT
