"""What a user sees of a session: on a terminal, in a file, and in the report."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("psutil")

from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.entry import parse
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.progress import Bars, Lines, Quiet, standing
from tvmconvgrad.tuning.report import best_so_far, summary, write
from tvmconvgrad.tuning.search.search import Found
from tvmconvgrad.tuning.session import make_entry


def found(task: Task) -> Found:
    """Four trials, of which one failed, and a winner."""
    winner = Choice.of("weights-o", {"tile": 1}, "weights-o(tile=1)")
    times = [0.002, None, 0.001, 0.003]
    return Found(task, times, default_seconds=0.002, winner=winner, gain=1.9, seconds=0.00105)


def test_standing_tells_speed_and_failures_and_no_gain_that_is_not_known(task: Task) -> None:
    gflops = task.problem.flops / 0.001 / 1e9
    assert standing(found(task)) == f"up to {gflops:.1f} GFLOP/s, 1 failed"
    assert standing(Found(task, [None])) == "nothing measured"


@pytest.mark.parametrize("kind", ["bars", "lines", "quiet"])
def test_displays(task: Task, kind: str) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=kind == "bars", width=120)
    display = {"bars": Bars(console, 4), "lines": Lines(console), "quiet": Quiet()}[kind]
    known = found(task)
    with display.begin([task, task]):
        display.trial(known)
        display.done(task, make_entry(known), "")
        display.done(task, None, "it cannot be built")
    text = out.getvalue()
    if kind == "quiet":
        assert text == ""
        return
    assert "small/filters: 1.05 ms" in text
    assert "1.90 times as fast as the default, 4 trials" in text
    assert "not tuned: it cannot be built" in text
    assert "2/2" in text
    assert ("[2/2]" in text) == (kind == "lines")


def test_the_table_has_a_row_for_each_entry_and_the_mean(task: Task) -> None:
    other = dataclasses.replace(task, problem=dataclasses.replace(task.problem, dtype="bf16"), names=("other",))
    same = Found(other, [0.002], seconds=0.002)
    out = io.StringIO()
    again = parse(make_entry(same).line())  # as a log has it
    Console(file=out, width=200).print(summary([task, other], [make_entry(found(task)), again]))
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert ["small/filters", "4", "1.050"] in [line[:3] for line in lines]
    assert ["other", "1", "2.000"] in [line[:3] for line in lines]
    assert ["geometric", "mean", f"{1.9**0.5:.3f}"] in lines


def test_the_best_so_far() -> None:
    assert best_so_far([None, 3.0, 4.0, None, 1.0]) == [float("inf"), 3.0, 3.0, 3.0, 1.0]


@pytest.mark.parametrize("suffix", [".html", ".png"])
def test_reports(task: Task, tmp_path: Path, suffix: str) -> None:
    odd = dataclasses.replace(task, names=("<b>odd</b>",))
    known = dataclasses.replace(found(task), task=odd)
    path = tmp_path / f"report{suffix}"
    write(path, "a title", [odd], [known], [make_entry(known)])
    content = path.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"&lt;b&gt;odd&lt;/b&gt;" in content
        assert b"<b>odd" not in content
