"""The examples run, and do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, folder: Path, *arguments: str, needs: str = "torch") -> str:
    for package in (needs, "sklearn", "matplotlib"):
        pytest.importorskip(package, reason=f'{package} is not installed (pip install -e ".[{needs},examples]")')
    words = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = os.environ | {"TVMCONVGRAD_TUNING_DIR": str(folder / "logs")}
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_train_digits(tmp_path: Path) -> None:
    said = run("train_digits.py", tmp_path, "--epochs", "2")
    shares = [float(share) for share in re.findall(r"(\S+)% of 360 digits right", said)]
    assert len(shares) == 2
    assert min(shares) > 60
    assert "conv2d 32->32 3x3, 64x8x8" in said


@pytest.mark.slow
def test_train_digits_jax(tmp_path: Path) -> None:
    said = run("train_digits_jax.py", tmp_path, "--epochs", "3", needs="jax")
    shares = [float(share) for share in re.findall(r"(\S+)% of 360 digits right", said)]
    assert len(shares) == 2
    assert min(shares) > 60
    assert "conv2d 32->32 3x3, 64x8x8" in said


@pytest.mark.slow
def test_denoise(tmp_path: Path) -> None:
    said = run("denoise.py", tmp_path, "--steps", "3")
    assert "tvmconvgrad: 3 steps" in said
    assert (tmp_path / "denoised.png").read_bytes().startswith(b"\x89PNG")
