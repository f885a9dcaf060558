"""Help as a newcomer reads it: on terminals of any width, its examples can be copied and are what the parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from tvmconvgrad.cli import main

Path_ = tuple[str, ...]


def commands(group: click.Group, path: Path_ = ()) -> Iterator[tuple[Path_, click.Command]]:
    """All commands, and the groups that they are in."""
    yield path, group
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(main))
VERBS = [path for path in ALL if len(path) == 1]


def shown(path: Path_, columns: int) -> str:
    result = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)})
    assert result.exit_code == 0
    return result.output


def examples(path: Path_, columns: int) -> list[str]:
    """The lines that someone copies."""
    return [line for line in shown(path, columns).splitlines() if line.lstrip().startswith("tvmconvgrad ")]


def parsed(words: list[str]) -> click.Context:
    """What click makes of a command line, down to the command that it names."""
    context = main.make_context("tvmconvgrad", words)
    while isinstance(context.command, click.Group):
        _, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(command.name, rest, parent=context)
    return context


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
@pytest.mark.parametrize("path", [(), *VERBS], ids=" ".join)
def test_examples_can_be_copied(path: Path_, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("diff_dst.npy", "weights.npy"):
        np.save(name, np.zeros(1, np.float32))
    Path("resnet.jsonl").touch()
    found = examples(path, columns)
    if path not in [("info",)]:
        assert found
    for line in found:
        assert "\\" not in line
        context = parsed(shlex.split(line)[1:])
        assert context.command in ALL.values()
    verbs = {shlex.split(line)[1] for line in found}
    assert not path or not found or path[0] in verbs


@pytest.mark.parametrize("path", list(ALL), ids=" ".join)
def test_help_of_every_command_is_as_wide_as_the_terminal(path: Path_) -> None:
    for columns in (60, 80):
        text, _, _ = shown(path, columns).partition("Examples:")
        assert max(map(len, text.splitlines())) <= columns


def test_help_names_every_option() -> None:
    for path, command in ALL.items():
        text = re.sub(r"\s", "", shown(path, 80))
        for parameter in command.params:
            assert parameter.opts[0] in text or isinstance(parameter, click.Argument)
