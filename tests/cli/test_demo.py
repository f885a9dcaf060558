"""tvmconvgrad demo: the picture, the errors and their bounds, and the search against what is known of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the demo needs the extra demo")

from PIL import Image

from tvmconvgrad.demo import deblurring
from tvmconvgrad.demo.scene import camera_shake, eight_bits, photograph


def test_the_demo(tmp_path: Path, invoke: Any) -> None:
    picture = tmp_path / "deblurred.png"
    result = invoke("demo", "-o", picture)
    assert result.exit_code == 0, result.output
    assert [float(percent) for percent in re.findall(r"bound of ([\d.]+) %", result.stdout)] == [1, 50]
    found, sharpened = (float(percent) for percent in re.findall(r"error ([\d.]+) %", result.stdout))
    assert found < 1
    assert sharpened < 50
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert min(image.size) > 700
        # photographs and a drawing, not an empty page
        assert len(np.unique(np.asarray(image.convert("L")))) > 100


def test_a_bound_that_is_missed_fails(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deblurring, "FILTER_STEPS", 2)
    monkeypatch.setattr(deblurring, "IMAGE_STEPS", 1)
    result = invoke("demo", "-o", tmp_path / "picture.png")
    assert result.exit_code == 1
    assert result.stdout.count("NOT below") == 2


def test_the_blur_is_a_convolution() -> None:
    image, filter_ = photograph()[:, :40, :30], camera_shake(1)
    rows, columns = np.lib.stride_tricks.sliding_window_view(image[..., 0], (5, 5), axis=(1, 2)).shape[1:3]
    expected = np.zeros((3, rows, columns))
    for i in range(5):
        for j in range(5):
            expected += filter_[i, j, 0, 0] * image[:, i : i + rows, j : j + columns, 0].astype(np.float64)
    np.testing.assert_allclose(deblurring.convolve(np.ascontiguousarray(image), filter_)[..., 0], expected, atol=1e-6)


def test_the_filter_is_the_least_squares_solution() -> None:
    image, filter_ = np.ascontiguousarray(photograph()[:, :60, :50]), camera_shake(2)
    blurred = eight_bits(deblurring.convolve(image, filter_))
    windows = np.lib.stride_tricks.sliding_window_view(image[..., 0].astype(np.float64), (5, 5), axis=(1, 2))
    solution, *_ = np.linalg.lstsq(windows.reshape(-1, 25), blurred.reshape(-1), rcond=None)
    *_, found = deblurring.watched("", deblurring.find_filter(image, blurred, (5, 5, 1, 1)), 80, lambda *_: None)
    np.testing.assert_allclose(found.reshape(25), solution, atol=2e-4)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_camera_shake(seed: int) -> None:
    shake = camera_shake(seed)
    assert shake.shape == (5, 5, 1, 1)
    assert shake.min() >= 0
    assert shake.sum() == pytest.approx(1)
    assert (shake > 0.01).sum() > 4


def test_bad_input(tmp_path: Path, fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no folder" in fails("demo", "-o", tmp_path / "missing" / "x.png")
    assert "-1 is not in the range x>=0" in fails("demo", "--seed", "-1")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else find(name))
    assert fails("demo") == "the demo needs pillow: pip install 'tvmconvgrad[demo]'"
