"""benchmarks/constants.py: a constant of a copied package is multiplied, and nothing else."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "constants.py"
TARGET = "llvm -mcpu=sapphirerapids"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def changed(script: dict[str, Any], folder: Path, path: str, name: str, factor: float) -> tuple[str, str]:
    """A file of the package before and after."""
    original = script["PACKAGE"] / path
    copy = folder / path
    copy.parent.mkdir(parents=True)
    shutil.copy(original, copy)
    script["Constant"](Path(path), name).multiply(folder, factor, TARGET)
    return original.read_text(), copy.read_text()


@pytest.mark.parametrize(
    ("path", "name", "factor", "old", "new"),
    [
        ("schedules/cpu/costs.py", "PACKING", 2.0, "PACKING = 0.7", "PACKING = 1.4"),
        ("schedules/cpu/costs.py", "WRITING_POSITIONS", 2.0, "= 0.45, 0.25", "= 0.45, 0.5"),
        ("schedules/cpu/costs.py", "IN_PLACE", 2.0, "(0.15, 0.35), (0.35, 0.35)", "(0.15, 0.35), (0.7, 0.7)"),
        ("schedules/cpu/costs.py", "SHARED", 0.1, "SHARED = 3", "SHARED = 1"),
    ],
)
def test_one_constant_is_multiplied(
    script: dict[str, Any], tmp_path: Path, path: str, name: str, factor: float, old: str, new: str
) -> None:
    before, after = changed(script, tmp_path, path, name, factor)
    assert before.count(old) == 1
    assert after == before.replace(old, new)


def test_a_number_of_a_machine_is_multiplied(script: dict[str, Any], tmp_path: Path) -> None:
    """A number of its own, by whatever target."""
    before, after = (json.loads(text) for text in changed(script, tmp_path, "machines/cpus/zen4.json", "l2", 3.0))
    assert after["numbers"].pop("l2")["value"] == 3 * before["numbers"].pop("l2")["value"] == 3 << 20
    assert after == before


def test_a_constant_that_is_not_there(script: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"schedules/cpu/costs\.py has no constant PACKINGS"):
        changed(script, tmp_path, "schedules/cpu/costs.py", "PACKINGS", 2.0)
