"""What the README shows works as it is written there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvmconvgrad.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("tvmconvgrad ")
]
LONG = ("bench", "build", "tune")

# one layer in place of minutes of them, and on machines without the peers too
QUICKLY = {
    "bench": ["--peers", "none", "--rounds", "1", "--layer", "conv1", "--only", "filters"],
    "prepare": ["--layer", "conv1", "--only", "filters", "--batch", "1"],
    "build": ["--layer", "conv1", "--only", "filters", "--batch", "1"],
    "tune": ["--layer", "res5b_branch2a", "--only", "filters", "--trials", "2"],
}


def test_the_python_example() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    shape, *kernel = done.stdout.splitlines()
    assert shape == "(3, 3, 64, 128)"
    assert kernel[0].startswith("ConvolutionBackpropFilters f32: input_forward NXC 8x56x56x64")


def test_the_example_of_building_in_the_background(tmp_path: Path) -> None:
    """What it asked for is the kernel that it says, and what it prepares is in the cache: one layer in place of all."""
    blocks = re.findall(r"```(python|py)\n(.*?)```", README, re.DOTALL)
    (before,) = [text for kind, text in blocks if kind == "python"]
    (example,) = [text for kind, text in blocks if "compile_async" in text]
    assert 'cg.prepare("resnet_50", dtype="bf16", progress=True)' in example
    example = example.replace('dtype="bf16"', 'dtype="bf16", substring="conv1"')
    asks = """
print(str(future.result(60)).splitlines()[0])
print(cg.prepare("resnet_50", dtype="bf16", substring="conv1"))
"""
    environment = {**os.environ, "TVMCONVGRAD_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", before + example + asks]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    *_, kernel, missing = done.stdout.splitlines()
    assert kernel.startswith("ConvolutionBackpropFilters f32: input_forward NXC 8x56x56x64")
    assert missing == "0"
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]  # no temporary file stays


def test_there_are_commands() -> None:
    found = {command.split()[1] for command in COMMANDS}
    assert found == {"run", "inspect", "bench", "build", "prepare", "tune", "log", "info", "cache"}


def test_commands_can_be_run_where_they_stand() -> None:
    """After the environment is active, with the extras that they need, and with a duration where they take long."""
    before, active, after = README.partition("\n. .venv/bin/activate\n")
    assert active
    assert "\ntvmconvgrad " not in before
    for extra in ("bench", "tune"):
        installed, command, _ = after.partition(f"\ntvmconvgrad {extra} ")
        assert command
        assert f'pip install -e ".[{extra}]"' in installed
    long = [command for command in COMMANDS if command.split()[1] in LONG]
    assert len(long) == len(LONG)
    for command in long:
        assert re.search(r"#.*\b(seconds|minutes?)\b", command), command


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that they write
    monkeypatch.setenv("TVMCONVGRAD_TUNING_DIR", str(tmp_path / "logs"))
    words = shlex.split(command, comments=True)[1:]
    if words[0] == "tune":
        pytest.importorskip("xgboost")  # the README's own command for the tests does not install it
    result = CliRunner().invoke(main, words + QUICKLY.get(words[0], []))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/concepts.md",
        "docs/auto_pad.md",
        "docs/deployment.md",
        "docs/design.md",
        "docs/environment.md",
        "docs/jax.md",
        "docs/new_target.md",
        "docs/pytorch.md",
        "docs/seeing.md",
        "docs/speed.md",
        "docs/tuning.md",
        "docs/weights_gradient.md",
    ],
)
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (path.parent / link).exists(), link
