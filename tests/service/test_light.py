"""A caller whose environment has no compiler, and names the interpreter of one that has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
_LIGHT = ("numpy", "numpy.libs", "ml_dtypes", "platformdirs")
_PROGRAM = """
import sys
import numpy as np
import tvmconvgrad as cg
op = cg.ConvolutionBackpropData(strides=(2,), dilations=(1,), pads_begin=(0,), pads_end=(0,))
first, second = np.ones((1, 3, 2), np.float32), np.ones((2, 1, 2), np.float32)
assert op(first, second).tolist() == [[[2.0]] * 6]
assert op.compile_async((1, 4, 2), (2, 1, 2)).result(60)(np.ones((1, 4, 2), np.float32), second).shape == (1, 8, 1)
assert cg.prepare(op.problem((1, 5, 2), (2, 1, 2)), progress=True) == 1
try:
    op.compile((1, 3, 2), (2, 1, 2), schedule="nonsense")
except ValueError as error:
    assert "schedule: 'nonsense' is unknown" in str(error), error
print(*sorted({"tvm", "tvm_ffi", "archspec", "rich", "jinja2", "torch"} & set(sys.modules)), "right")
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with few packages, this one among them."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    site = Path(np.__file__).parents[1]
    for name in _LIGHT:
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    (packages / "tvmconvgrad").symlink_to(ROOT / "tvmconvgrad")
    return folder / "bin" / "python"


def full(folder: Path, package: Path = ROOT) -> Path:
    """An interpreter that has the compiler, and this package from a folder."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{package}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def run(light: Path, folder: Path, compiler: Path | str, program: str = _PROGRAM) -> subprocess.CompletedProcess[str]:
    """A program in the light environment."""
    variables = {"PATH", "HOME", "LANG", "CXX", "CC"}
    environment = {name: value for name, value in os.environ.items() if name in variables}
    environment |= {"TVMCONVGRAD_CACHE_DIR": str(folder / "cache"), "TVMCONVGRAD_TUNING_DIR": str(folder / "logs")}
    environment |= {"TVMCONVGRAD_COMPILER": str(compiler), "PYTHONPATH": str(folder / "of the caller alone")}
    words = [light, "-c", program]
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder, timeout=120, check=False)


def test_kernels_are_compiled_by_another_interpreter(light: Path, tmp_path: Path) -> None:
    done = run(light, tmp_path, full(tmp_path))
    assert (done.stdout, done.stderr) == ("right\n", "")
    assert len(list((tmp_path / "cache").glob("*.kernel"))) == 3


def test_another_version_is_named(light: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "tvmconvgrad").mkdir()
    for path in (ROOT / "tvmconvgrad").iterdir():
        (other / "tvmconvgrad" / path.name).symlink_to(path)
    text = (ROOT / "tvmconvgrad" / "version.py").read_text()
    (other / "tvmconvgrad" / "version.py").unlink()
    (other / "tvmconvgrad" / "version.py").write_text(text.replace('__version__ = "', '__version__ = "9.'))
    python = full(tmp_path, other)
    done = run(light, tmp_path, python)
    assert f"MissingCompiler: TVMCONVGRAD_COMPILER: {python} has tvmconvgrad 9." in done.stderr
    assert ", and this process has 0." in done.stderr


def test_another_text_of_the_same_version_is_told(light: Path, tmp_path: Path) -> None:
    """Its kernels would be kept as if they were this one's."""
    other = tmp_path / "other"
    (other / "tvmconvgrad" / "te").mkdir(parents=True)
    for path in (ROOT / "tvmconvgrad").iterdir():
        if path.name != "te":
            (other / "tvmconvgrad" / path.name).symlink_to(path)
    for path in (ROOT / "tvmconvgrad" / "te").glob("*.py"):
        (other / "tvmconvgrad" / "te" / path.name).write_text(path.read_text() + "\n# edited\n")
    done = run(light, tmp_path, full(tmp_path, other))
    assert "MissingCompiler: the process that compiles has another text of tvmconvgrad" in done.stderr


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "cannot be run: "),
        ("exit 0", "it ended with 0 and said: nothing"),
        ("echo hello", "it ended with 0 and said: hello"),
        ("exit 3", "it ended with 3 and said: nothing"),
        ("echo no such package >&2; exit 1", "it ended with 1 and said: no such package"),
    ],
)
def test_what_is_no_such_interpreter(program: str | None, words: str, light: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    done = run(light, tmp_path, python)
    assert f"MissingCompiler: TVMCONVGRAD_COMPILER: {python} " in done.stderr
    assert words in done.stderr


def test_without_a_name_it_is_told_what_is_missing(light: Path, tmp_path: Path) -> None:
    done = run(light, tmp_path, "", _PROGRAM.replace("print(", "raise SystemExit("))
    assert "MissingKernel" in done.stderr
    assert "apache-tvm is not installed" in done.stderr
    assert "TVMCONVGRAD_COMPILER names no interpreter" in done.stderr
