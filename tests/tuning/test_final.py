"""What a search says of its candidates: nothing that is not known, and why one is not taken. Minutes are heeded."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.search.final import decide


class Timed:
    """A measurer whose rounds are known."""

    parallel = 1

    def __init__(self, *seconds: list[float]) -> None:
        self._seconds = seconds
        self.rounds = 0

    def prepare(self, task: Task, library: str) -> None:
        raise AssertionError

    def measure(self, library: str, limit: float) -> list[float]:
        raise AssertionError("what is measured alone decides nothing")

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        self.rounds = rounds
        return [list(each) for each in self._seconds]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("others", "winner", "why"),
    [
        ([], None, "no other candidate was measured"),
        ([[1.0, 1.0, 1.0, 1.0]], None, "run in turn with it, 4 times, the best of 1 other was 1.00 times as fast, and"),
        ([[4.0] * 4, [0.99] * 4], None, "the best of 2 others was 1.01 times as fast, and less than 1.02 is noise"),
        ([[0.5, 0.9, 1.0, 1.0]], None, "1.06 times as fast, but in less than three quarters of the rounds faster"),
        ([[0.9] * 4, [0.8] * 4, [0.5, 0.5, 0.5, 2.0]], 2, ""),
        ([[0.8] * 4, [0.9] * 4, [0.5, 0.5, 2.0, 2.0]], 0, ""),
    ],
)
def test_what_is_not_taken_has_a_reason(others: list[list[float]], winner: int | None, why: str) -> None:
    verdict = decide(Timed([1.0] * 4, *others), "default", [str(i) for i in range(len(others))], 1e-3)
    assert verdict.winner == winner
    assert why in verdict.why
    assert bool(verdict.why) == (winner is None)
    assert (verdict.gain > 1) == (winner is not None)


def test_the_final_takes_the_time_that_there_is() -> None:
    rounds = []
    for seconds in (100.0, 0.7, 0.0):
        measurer = Timed([1.0])
        decide(measurer, "default", [], 0.02, seconds)
        rounds.append(measurer.rounds)
    assert rounds == [11, 8, 4]


def test_minutes_are_heeded(tmp_path: Path) -> None:
    """A layer whose candidates take seconds to build, for a time in which a batch of them is not built."""
    pytest.importorskip("xgboost")
    words = ["tune", "resnet_50", "--layer", "res4a_branch2b", "--only", "filters", "--threads", "1"]
    command = [sys.executable, "-m", "tvmconvgrad", *words, "--trials", "9999", "--log-dir", str(tmp_path)]
    begin = time.monotonic()
    done = subprocess.run([*command, "--minutes", "0.3"], capture_output=True, text=True, check=False)
    taken = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    assert taken < 18 + 6, done.stdout
    told = re.findall(r"times as fast|the default is best, \d+ trials?; |time was up", done.stdout)
    assert told, done.stdout
