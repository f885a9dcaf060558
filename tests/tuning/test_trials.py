"""Trials on disk: what was written is read again, whatever else the file holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("psutil")

from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.search.trials import DIGESTS, RECORDS, TaskBusy, Trials


def written(task: Task, folder: Path, count: int) -> Decisions:
    """Some trials: the first one failed."""
    space = Decisions(task)
    trials = Trials(folder, space)
    for place, candidate in enumerate(space.samples(count)):
        trials.append(candidate.measured, [0.001 * place, 0.002 * place, 0.5] if place else None)
    trials.close()
    return space


def again(folder: Path, space: Decisions) -> list[float | None]:
    trials = Trials(folder, space)
    trials.close()
    return trials.times


def test_what_was_written_is_read(task: Task, tmp_path: Path) -> None:
    space = written(task, tmp_path, 3)
    assert again(tmp_path, space) == [None, 0.002, 0.004]


@pytest.mark.parametrize(
    "line",
    [
        "garbage", "[]", "[0]", "[1, []]", "[0, [[], [1.0], null, null]]", "null", "{}", "[0, null]",
        '[0, [[[["GetSBlock", [], ["nothing", "main"], ["b0"]]], []], [1.0], null, null]]',
        '[0, [[[["Nothing", [], [], []]], []], [1.0], null, null]]',
        "[" * 5000, "\0\0\0",
    ],
)  # fmt: skip
def test_a_damaged_line_is_left_out(task: Task, tmp_path: Path, line: str) -> None:
    space = written(task, tmp_path, 2)
    path = tmp_path / RECORDS
    good = path.read_text()
    path.write_text(f"{line}\n{good}{line}")
    assert again(tmp_path, space) == [None, 0.002]
    assert path.read_text() == good


def test_a_line_that_was_cut_off_anywhere_is_left_out(task: Task, tmp_path: Path) -> None:
    space = written(task, tmp_path, 2)
    path = tmp_path / RECORDS
    good = path.read_text()
    for length in range(len(good) - 2, good.index("\n") + 1, -97):
        path.write_text(good[:length])
        assert again(tmp_path, space) == [None]


def test_other_peoples_instructions_are_not_replayed(task: Task, tmp_path: Path) -> None:
    space = written(task, tmp_path, 2)
    path = tmp_path / RECORDS
    index, record = json.loads(path.read_text().splitlines()[1])
    record[0][0].append(["Annotate", ["b0", '"int main;"'], ["pragma_import_c"], []])
    line = json.dumps([index, record])
    path.write_text(line)
    (tmp_path / DIGESTS).write_text(hashlib.sha256(line.encode()).hexdigest())  # it is not the digest that refuses it
    assert again(tmp_path, space) == []


def test_one_search_at_a_time(task: Task, tmp_path: Path) -> None:
    space = Decisions(task)
    trials = Trials(tmp_path, space)
    with pytest.raises(TaskBusy, match="small/filters: another process is tuning it"):
        Trials(tmp_path, space)
    trials.close()


def test_a_changed_record_is_left_out(task: Task, tmp_path: Path) -> None:
    """TVM ends the process for a value of another type than it expects."""
    space = written(task, tmp_path, 2)
    path = tmp_path / RECORDS
    first, second = path.read_text().splitlines()
    content = json.loads(second)
    content[1][1][0] = content[1][1][0] + 1
    for changed in (second.replace('"v1"', "null"), json.dumps(content)):
        assert changed != second
        path.write_text(f"{first}\n{changed}\n")
        assert again(tmp_path, space) == [None]
