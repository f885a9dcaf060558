"""What is printed fits where it is printed, and counts in words."""

from __future__ import annotations

import io
from typing import Any

import pytest
import rich.table
from rich.console import Console

from tvmconvgrad.common.terminal import print_table
from tvmconvgrad.spec.values import counted


def printed(monkeypatch: pytest.MonkeyPatch, columns: int | None, **options: Any) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    table = rich.table.Table("layer", "schedule")
    table.add_column("ms", no_wrap=True)
    table.add_row("resnet_50 res4a_branch2b filters", " ".join(["weights-o(tile=14x2,tasks=16)"] * 12), "12.345")
    out = Console(file=io.StringIO(), **options)
    print_table(table, out)
    return out.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("columns", "widest"), [(None, 120), (80, 80), (60, 60), (200, 200)])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says(
    columns: int | None, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(monkeypatch, columns)
    assert max(map(len, lines)) <= widest
    assert any("12.345" in line for line in lines)  # a number is not broken


def test_a_table_on_a_terminal_is_as_wide_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(map(len, printed(monkeypatch, None, width=70, force_terminal=True, color_system=None))) <= 70


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (21, "21 layers"), (1001, "1001 layers")]
)
def test_one_is_no_plural(count: int, words: str) -> None:
    assert counted(count, "layer") == words
    assert counted(count, "entry", "entries") == words.replace("layers", "entries").replace("layer", "entry")
