"""tvmconvgrad inspect: what it prints is the kernel's, for this machine and for others."""

from __future__ import annotations

import re
from typing import Any

import pytest

DATA = ("inspect", "ConvolutionBackpropData", "--shapes", "1,3,3,4", "3,3,2,4", "--strides", "2,2")
SAME = (*DATA, "--auto-pad", "same_upper", "--output-shape", "1,6,6,2")


def test_summary_shows_the_pads_in_force(invoke: Any) -> None:
    pads = {}
    for auto_pad in ("same_upper", "same_lower"):
        result = invoke(*DATA, "--auto-pad", auto_pad, "--output-shape", "1,6,6,2")
        assert result.exit_code == 0, result.output
        pads[auto_pad] = re.findall(r"^pads_(?:begin|end) +(.*)$", result.stdout, re.MULTILINE)
    assert pads == {"same_upper": ["(0, 0)", "(1, 1)"], "same_lower": ["(1, 1)", "(0, 0)"]}


def test_sections(invoke: Any) -> None:
    te, tir, asm = (invoke(*SAME, option).stdout for option in ("--te", "--tir", "--asm"))
    assert "input_delta" not in asm
    assert "T.parallel" in tir
    assert "T.parallel" not in te
    assert "output_delta: T.Buffer((1, 3, 3, 4)" in te
    assert "T.int64(" not in te + tir
    assert ".globl" in asm
    both = invoke(*SAME, "--te", "--asm").stdout
    assert both == f"{te}\n{asm}"


@pytest.mark.parametrize(
    ("target", "register"),
    [
        ("llvm -mcpu=haswell", r"vfmadd\w+\s.*%ymm"),
        ("llvm -mcpu=sapphirerapids", r"vfmadd\w+\s.*%zmm"),
        ("llvm -mcpu=neoverse-n1", r"fmla\s+v\d+\.4s"),
    ],
)
def test_assembly_is_the_targets(target: str, register: str, invoke: Any) -> None:
    words = ("inspect", "ConvolutionBackpropFilters", "--shapes", "1,8,8,32", "1,8,8,64", "--auto-pad", "same_upper")
    result = invoke(*words, "--filter-shape", "3,3,32,64", "--target", target, "--asm")
    assert result.exit_code == 0, result.output
    assert re.search(register, result.stdout)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("inspect", "ConvolutionBackpropData", "--auto-pad", "valid"), "Missing option '--shapes'"),
        ((*DATA, "--auto-pad", "same_upper"), "output_shape: "),
        ((*SAME, "--schedule", "magic"), "schedule: 'magic' is unknown"),
        ((*SAME, "--target", "llvm -mcpu=pentium9"), "target: mcpu 'pentium9'"),
        ((*SAME, "--target", "opencl"), "target: kind 'opencl'"),
        (("inspect", "ConvolutionBackpropData", "--shapes", "0,3,3,4", "3,3,2,4", "--auto-pad", "valid"), "no kernel"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, fails: Any) -> None:
    assert message in fails(*words)
