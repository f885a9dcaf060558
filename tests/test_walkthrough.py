"""docs/weights_gradient.md shows the program and the instructions that its command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tvmconvgrad.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "weights_gradient.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def shown() -> str:
    """What the page's command prints, without its last three options and with them."""
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMCONVGRAD_TUNING_DIR", "/nowhere")
        words = shlex.split(command.replace("\\\n", " "))[1:]
        results = [CliRunner().invoke(main, given) for given in (words[:-3], words)]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    return "".join(result.output for result in results)


def test_the_plan(shown: str) -> None:
    (plan,) = re.findall(r"^    (weights-o\(.*?\))\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert " ".join(plan.split()) in " ".join(shown.split())
    assert "6.1 MiB" in shown


def test_the_innermost_loop(shown: str) -> None:
    """The instructions follow each other as on the page, and no accumulator goes to the stack."""
    blocks = re.findall(r"```asm\n(.*?)```", PAGE, re.DOTALL)
    wanted = [" ".join(line.partition("#")[0].split()) for block in blocks for line in block.splitlines()]
    assert len(wanted) == 12
    printed = [" ".join(line.split()) for line in shown.splitlines()]
    assert set(wanted) <= set(printed)
    begin = printed.index(wanted[0])
    loop = printed[begin : begin + 24]
    assert [line for line in loop if line in wanted] == wanted[:10]
    names = [line.split()[0] for line in loop]
    assert [names.count(name) for name in ("vfmadd231ps", "vmovups", "vbroadcastss")] == [16, 4, 4]
    assert "(%rsp)" not in " ".join(line for line in printed if "%zmm" in line)
