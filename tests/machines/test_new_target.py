"""The kind of target that docs/new_target.md adds computes all operators, and each Backend's names exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.building.compiling_here import compile_here
from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.oracles import reference
from tvmconvgrad.machines.backends import BACKENDS
from tvmconvgrad.machines.targets import parse_target

DOCUMENT = Path(__file__).parents[2] / "docs" / "new_target.md"
CONV = Convolution(2, 2, 4, 6, (7, 5), (4, 3), (3, 2), (2, 2), (1, 1), (1, 0), (1, 1))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The documented kind, registered; returns the program that uses it."""
    toy, compiler, use = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    compile_here(monkeypatch)
    for name, text in (("toy", toy), ("toy_compiler", compiler)):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(text, module.__dict__)
    yield use
    del BACKENDS["toy"]


def test_the_documented_kind_computes(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example, {})
    assert capsys.readouterr().out == "[[[2.0], [2.0], [2.0], [2.0], [2.0], [2.0]]]\n"


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator(operator: str, example: str) -> None:
    case = Case(operator, CONV)
    tensors = operands(CONV, case.result)
    expected = reference.gradient(CONV, case.result, tensors).astype(np.float32)
    kernel = getattr(cg, operator)(**case.attributes).compile(*case.call.shapes, target="toy -mcpu=x86-64-v2")
    assert kernel.schedule == "plain()"
    assert str(kernel.target) == "toy -mcpu=x86-64-v2"
    assert_same(layouts.to_canonical(kernel(*case.arrays(tensors)), case.axes(case.result)), expected)


def test_wrong_words_name_the_kinds_and_their_options(example: str) -> None:
    with pytest.raises(ValueError, match=r"kind 'toi' in 'toi' is not supported, expected llvm or cuda or toy$"):
        parse_target("toi")
    with pytest.raises(ValueError, match=r"option 'arch' in .* is unknown, expected one of mcpu"):
        parse_target("toy -arch=sm_90")


@pytest.mark.parametrize("kind", sorted(BACKENDS))
def test_what_a_backend_names_is_there(kind: str) -> None:
    backend = BACKENDS[kind]
    named = [field.name for field in fields(backend) if field.type == "str" and field.name != "measurer"]
    assert len(named) == 5
    assert all(backend.get(name) for name in named)
    assert {"build", "compile_scheduled", "compile_problem"} <= set(vars(backend.get("compiler")))
