"""The C compiler, its options and the binutils are those that the environment names, and are tried before compiling."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad as cg
from tests.support.building.compilers import compiler as some_compiler
from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import c_tools
from tvmconvgrad.deploy import bundle
from tvmconvgrad.deploy.toolchain import Toolchain
from tvmconvgrad.layers import Layer
from tvmconvgrad.machines.host import host_architecture

ONE = [Layer(name="one", batch=1, channels=2, filters=3, input_size=(4,), kernel=(1,))]
FOREIGN = "aarch64" if host_architecture() == "x86_64" else "x86_64"
FOREIGN_TARGET = {"aarch64": "llvm -mcpu=cortex-a76", "x86_64": "llvm -mcpu=x86-64-v3"}[FOREIGN]
VARIABLES = ("CC", "CXX", "CFLAGS", "LDFLAGS", "OBJCOPY", "AR")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names nothing."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails now fails before the first kernel is compiled."""

    def refused(*_: Any) -> None:
        raise AssertionError("a kernel was compiled")

    monkeypatch.setattr(bundle, "_compile_all", refused)


def logging_tool(path: Path, tool: str) -> Path:
    """A program that notes what it is called with, and calls another one."""
    path.write_text(f'#!/bin/sh\necho "$@" >> "{path}.log"\nexec {tool} "$@"\n')
    path.chmod(0o755)
    return path


def test_everything_that_is_named_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my tools"
    folder.mkdir()
    gcc = logging_tool(folder / "my-gcc", some_compiler())
    tools = {name: logging_tool(folder / f"my-{name}", name) for name in ("objcopy", "ar")}
    monkeypatch.setenv("CC", f"'{gcc}' -DTHROUGH_CC")
    monkeypatch.setenv("CFLAGS", "-DOF_CFLAGS '-DA=a b'")
    monkeypatch.setenv("LDFLAGS", "-Wl,-z,relro")
    monkeypatch.setenv("OBJCOPY", str(tools["objcopy"]))  # a path with a space in it
    monkeypatch.setenv("AR", f"'{tools['ar']}'")
    made = cg.build(ONE, tmp_path / "made", name="made", only="filters", static=True)
    calls = Path(f"{gcc}.log").read_text().splitlines()
    for call in calls:
        if "--version" not in call and "-print-prog-name" not in call:
            assert "-DTHROUGH_CC" in call
    assert any("bundle.c" in call and "-DOF_CFLAGS -DA=a b" in call for call in calls)
    shared = [call for call in calls if "libmade.so" in call]
    assert shared
    assert all("-Wl,-z,relro" in call and "-DOF_CFLAGS" in call for call in shared)
    for tool in tools.values():
        assert Path(f"{tool}.log").read_text()
    assert (made / "libmade.a").stat().st_size
    assert cg.load(made)


def test_options_of_other_projects_are_not_this_machines_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "--sysroot=/opt/board")
    assert c_tools.options_for(host_architecture(), "CFLAGS", "LDFLAGS") == []
    assert c_tools.options_for(FOREIGN, "CFLAGS", "LDFLAGS") == ["--sysroot=/opt/board"]


@pytest.mark.parametrize(
    ("given", "target", "told"),
    [
        ({"PATH": "/nowhere"}, FOREIGN_TARGET, f"a C compiler for {FOREIGN} and none was found"),
        ({"CC": "gcc"}, FOREIGN_TARGET, f"gcc failed: it compiles for {host_architecture()}"),
        ({"CXX": "/nowhere/cc --sysroot=/"}, FOREIGN_TARGET, "/nowhere/cc"),
        ({"OBJCOPY": "/nowhere/objcopy"}, None, "/nowhere/objcopy was not found: install .*, or name it in OBJCOPY"),
        ({"AR": "/nowhere/ar -x"}, None, "/nowhere/ar was not found: install .*, or name it in AR"),
        ({"CFLAGS": "-fno-such-option"}, None, "fno-such-option"),
        ({"LDFLAGS": "-Wl,--no-such-option"}, None, "no-such-option"),
    ],
)
def test_what_is_missing_fails_before_compiling(
    given: dict[str, str],
    target: str | None,
    told: str,
    compiles_nothing: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some_compiler("gcc")
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(MissingLinker, match=told):
        cg.build(ONE, tmp_path / "made", targets=target, static=True)
    assert not list(tmp_path.iterdir())


def test_a_quotation_mark_that_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "'-O2")
    with pytest.raises(ValueError, match=r"CFLAGS: \"'-O2\" cannot be read"):
        cg.build(ONE, tmp_path / "made")


def test_a_check_takes_no_time() -> None:
    begin = time.process_time()
    Toolchain(some_compiler(), MissingLinker).check(static=shutil.which("ar") is not None)
    assert time.process_time() - begin < 1
