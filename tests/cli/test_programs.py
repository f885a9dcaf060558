"""The command line as it is installed, in processes of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvmconvgrad

SCRIPT = [str(Path(sys.executable).with_name("tvmconvgrad"))]
MODULE = [sys.executable, "-m", "tvmconvgrad"]
PROGRAMS = [
    pytest.param(
        SCRIPT,
        id="script",
        marks=pytest.mark.skipif(not Path(SCRIPT[0]).exists(), reason="tvmconvgrad is not installed"),
    ),
    pytest.param(MODULE, id="module"),
]
RUN = "run ConvolutionBackpropFilters --shapes 1,6,6,2 1,6,6,3 --auto-pad same_upper --filter-shape 3,3,2,3"


def start(program: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run([*program, *words], capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("program", PROGRAMS)
def test_run(program: list[str]) -> None:
    done = start(program, *RUN.split(), "--threads", "1", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "threads: 1" in done.stdout
    assert "right: equal to the definition" in done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_are_one_line(program: list[str]) -> None:
    done = start(program, *RUN.split(), "--groups", "2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"Error: output_delta: shape .*multiple of groups 2\n", done.stderr)


@pytest.mark.parametrize("program", PROGRAMS)
def test_version(program: list[str]) -> None:
    assert start(program, "--version").stdout == f"tvmconvgrad, version {tvmconvgrad.__version__}\n"


@pytest.mark.parametrize("verb", ["run", "inspect", "prepare", "demo", "cache"])
def test_help_shows_examples(verb: str) -> None:
    done = start(MODULE, verb, "--help")
    assert done.returncode == 0
    assert f"Usage: tvmconvgrad {verb}" in done.stdout
    assert re.search(rf"^ +tvmconvgrad {verb}", done.stdout, re.MULTILINE)


def test_help_lists_the_verbs() -> None:
    done = start(MODULE, "--help")
    assert done.returncode == 0
    for verb in ("run", "inspect", "prepare", "demo", "cache", "info"):
        assert re.search(rf"\b{verb}  ", done.stdout)


def test_help_loads_no_compiler() -> None:
    program = (
        "import sys\nfrom tvmconvgrad.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'tvm', 'matplotlib', 'PIL'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
