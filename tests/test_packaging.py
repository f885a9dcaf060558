"""What is shipped: the wheel's contents, one version, and the pins that the compiler needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tvmconvgrad

ROOT = Path(__file__).parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy of its files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("tvmconvgrad", "tests", "tuning_logs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the build backend, hatchling, cannot be installed here")
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"tvmconvgrad-{tvmconvgrad.__version__}.dist-info/"
    files = [path for path in (ROOT / "tvmconvgrad").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    logs = [ROOT / "tvmconvgrad" / path.relative_to(ROOT) for path in (ROOT / "tuning_logs").rglob("*.jsonl")]
    assert len(logs) >= 2
    packed = {str(path.relative_to(ROOT)) for path in files + logs}
    assert {name for name in names if not name.startswith(info)} == packed
    assert {"tvmconvgrad/py.typed", f"{info}licenses/LICENSE"} <= names


def test_the_wheels_metadata(wheel: Path) -> None:
    info = f"tvmconvgrad-{tvmconvgrad.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{info}/METADATA").decode()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert f"\nVersion: {tvmconvgrad.__version__}\n" in metadata
    assert "\nRequires-Dist: apache-tvm-ffi==0.1.14.post1\n" in metadata
    assert "tvmconvgrad = tvmconvgrad.cli:main" in entry_points


def test_the_changelog_and_the_citation_know_the_version() -> None:
    latest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert latest
    assert latest[1] == tvmconvgrad.__version__
    assert f"\nversion: {tvmconvgrad.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_the_installed_packages_are_those_that_are_pinned() -> None:
    from importlib.metadata import version

    for name in ("apache-tvm", "apache-tvm-ffi"):
        assert f'"{name}=={version(name)}"' in PYPROJECT
