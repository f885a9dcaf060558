"""What a log says is what a kernel is made by, as long as it is right; whatever else it holds changes nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tvmconvgrad as cg
from tests.tuning.conftest import OP, SHAPES
from tests.tuning.entries import make_entry
from tvmconvgrad import schedules
from tvmconvgrad.common import process
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records import logs, lookup
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import DamagedEntry, parse
from tvmconvgrad.records.logs import TuningWarning
from tvmconvgrad.spec import Problem

TARGET = parse_target(None)


@pytest.fixture
def fresh(logs_here: Path) -> Path:
    """No kernel is in memory."""
    process.forget()
    return logs_here


def inputs() -> list[Any]:
    rng = np.random.default_rng(1)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in SHAPES]


def expected() -> Any:
    return OP.compile(*SHAPES, tuned=False)(*inputs())


def test_a_kernel_is_made_as_the_log_says(fresh: Path, problem: Problem) -> None:
    untuned = OP.compile(*SHAPES)
    assert untuned.origin == "default"
    entry = make_entry(problem)
    logs.append(fresh, [entry])
    tuned = OP.compile(*SHAPES)
    assert tuned.schedule == entry.plan != untuned.schedule
    assert tuned.origin == "tuned: the user's log"
    assert "decisions tuned: the user's log" in str(tuned)
    assert np.array_equal(tuned(*inputs()), expected())
    assert OP.compile(*SHAPES, tuned=False).schedule == untuned.schedule
    assert OP.compile(*SHAPES, schedule="weights-o").origin == "default"


def test_the_users_log_goes_before_the_shipped_one(
    fresh: Path, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SHIPPED", tmp_path / "shipped")
    logs.append(tmp_path / "shipped", [make_entry(problem)])
    assert OP.compile(*SHAPES).origin == "tuned: the shipped log"
    logs.append(fresh, [make_entry(problem, rule=None, decisions={}, gain=1.0)])
    kernel = OP.compile(*SHAPES)
    assert kernel.origin == "default, found to be the best: the user's log"
    assert kernel.schedule == OP.compile(*SHAPES, tuned=False).schedule


def test_a_later_line_wins(fresh: Path, problem: Problem) -> None:
    logs.append(fresh, [make_entry(problem, rule=None, decisions={}), make_entry(problem)])
    assert lookup.find(problem, TARGET).choice is not None
    logs.append(fresh, [make_entry(problem, rule=None, decisions={})])
    assert lookup.find(problem, TARGET).choice is None


@pytest.mark.parametrize(
    "changed",
    [
        {"version": VERSION + 1},
        {"tvm": "0.1"},
        {"target": "llvm -mcpu=x86-64-v2"},
    ],
)
def test_an_entry_for_something_else_is_passed_over(fresh: Path, problem: Problem, changed: dict[str, Any]) -> None:
    entry = make_entry(problem, **changed)
    path = logs.target_folder(fresh, TARGET) / logs.FILE
    path.parent.mkdir(parents=True)
    path.write_text(entry.line() * 3)
    with pytest.warns(TuningWarning, match="line 1: it is for .* and 2 more") as found:
        assert lookup.find(problem, TARGET) == lookup.Tuned(None, "default")
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert OP.compile(*SHAPES).origin == "default"


def test_another_problem_is_not_found(fresh: Path, problem: Problem) -> None:
    logs.append(fresh, [make_entry(problem)])
    other = OP.problem((2, 13, 12, 16), (2, 13, 12, 32))
    assert lookup.find(other, TARGET).choice is None
    assert lookup.find(dataclasses.replace(problem, dtype="bf16"), TARGET).choice is None
    assert lookup.find(problem, parse_target("llvm -mcpu=x86-64-v2")).choice is None


@pytest.mark.parametrize(
    "changed",
    [
        {"decisions": {"tile": 77}},
        {"decisions": {"tile": -1}},
        {"decisions": {"n_partitions": 1}},
        {"rule": "data-channels"},
        {"rule": "nothing"},
        {"plan": "weights-o(tile=another one)"},
        {"rule": "post-order-apply", "trace": "[]"},
        {"rule": "post-order-apply", "trace": "nonsense"},
    ],
)
def test_a_choice_that_does_not_apply_is_set_aside(fresh: Path, problem: Problem, changed: dict[str, Any]) -> None:
    logs.append(fresh, [make_entry(problem, **changed)])
    for _ in range(2):  # built, and from the cache
        process.forget()
        with pytest.warns(TuningWarning, match="is set aside, and the default schedule used"):
            kernel = OP.compile(*SHAPES)
        assert kernel.origin == "default"
        assert kernel.schedule == OP.compile(*SHAPES, tuned=False).schedule
        assert np.array_equal(kernel(*inputs()), expected())


@pytest.mark.parametrize("length", [1, 50, -2])
def test_a_line_that_was_cut_off_is_passed_over(fresh: Path, problem: Problem, length: int) -> None:
    entry = make_entry(problem)
    logs.append(fresh, [entry])
    path = logs.target_folder(fresh, TARGET) / logs.FILE
    path.write_text(entry.line() + entry.line()[:length])
    with pytest.warns(TuningWarning, match="line 2"):
        assert lookup.find(problem, TARGET).choice == entry.choice
    logs.append(fresh, [entry])  # begins a line of its own
    assert len(path.read_text().splitlines()) == 3
    assert parse(path.read_text().splitlines()[-1]) == entry


NESTED = "[" * 100_000
HUGE = "1" + "0" * 10_000


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "\0", NESTED, HUGE, '{"a": 1e999}', "x" * 2_000_000, "\ud800"])
def test_garbage_is_damaged(text: str) -> None:
    with pytest.raises(DamagedEntry):
        parse(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_an_entry_edited_by_hand_changes_no_result(problem: Problem, data: st.DataObject) -> None:
    """Any field with any value, with a digest that fits or not: it is damaged, or another key, or set aside."""
    entry = make_entry(problem)
    content = json.loads(entry.line())
    name = data.draw(st.sampled_from(sorted(set(content) - {"digest"})))
    value = data.draw(VALUES)
    if json.dumps(value) == json.dumps(content[name]):
        return
    content[name] = value
    with pytest.raises(DamagedEntry):  # its digest does not fit
        parse(json.dumps(content))
    try:
        from tvmconvgrad.records.entry import _digest

        content.pop("digest")
        found = parse(json.dumps({**content, "digest": _digest(content)}))
    except (DamagedEntry, ValueError):
        return
    if found.key == entry.key and found.choice not in (None, entry.choice):
        from tvmconvgrad.compiler.llvm import build
        from tvmconvgrad.records.choice import ChoiceRefused

        with pytest.raises(ChoiceRefused):
            build(problem, TARGET, None, found.choice)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_a_file_of_garbage_stops_nothing(logs_here: Path, problem: Problem, garbage: bytes) -> None:
    path = logs.target_folder(logs_here, TARGET) / logs.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(garbage)
    lookup._read.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)
        assert lookup.find(problem, TARGET).choice is None


def test_a_log_that_is_a_folder_stops_nothing(fresh: Path, problem: Problem) -> None:
    (logs.target_folder(fresh, TARGET) / logs.FILE).mkdir(parents=True)
    with pytest.warns(TuningWarning, match="cannot be read"):
        assert lookup.find(problem, TARGET).choice is None


def _of_a_terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), _of_a_terabyte])
def test_what_is_no_log_is_not_waited_for(fresh: Path, problem: Problem, put: Callable[[Path], None]) -> None:
    path = logs.target_folder(fresh, TARGET) / logs.FILE
    path.parent.mkdir(parents=True)
    put(path)
    with pytest.warns(TuningWarning, match="cannot be read: it (is no regular file|has 1099511627776 bytes)"):
        assert lookup.find(problem, TARGET) == lookup.Tuned(None, "default")


def test_rewriting_keeps_what_is_of_use(fresh: Path, problem: Problem) -> None:
    old, new = make_entry(problem, gain=1.1), make_entry(problem, gain=1.2)
    path = logs.append(fresh, [old, make_entry(problem, version=VERSION + 1), new])
    with path.open("a") as file:
        file.write("garbage")
    assert logs.rewrite(path) == 3
    assert path.read_text() == new.line()


PROGRAM = """
import sys
import numpy as np
import tvmconvgrad as cg
op = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 16, 32)
)
print(op.compile((2, 12, 12, 16), (2, 12, 12, 32)).origin, "tvm" in sys.modules)
"""


def test_looking_up_loads_no_compiler(fresh: Path, problem: Problem) -> None:
    logs.append(fresh, [make_entry(problem)])
    runs = [subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True) for _ in range(2)]
    assert runs[-1].stdout == "tuned: the user's log False\n", runs[-1].stderr


def test_shipped_logs_are_all_of_use() -> None:
    found = list(logs.files(logs.SHIPPED))
    assert found
    for path in found:
        assert logs.read(path).problems == []


def test_shipped_choices_lead_to_the_plans_that_were_measured() -> None:
    """Otherwise they are refused, with a warning. Who changes a cost model takes out what it makes stale."""
    entries = [entry for path in logs.files(logs.SHIPPED) for entry in logs.read(path).entries.values() if entry.choice]
    assert entries
    for entry in entries:
        choice, problem = entry.choice, Problem.from_dict(entry.problem)
        assert choice is not None
        scheduled = schedules.schedule(problem, parse_target(entry.target), choice.rule, dict(choice.decisions))
        assert str(scheduled) == choice.plan, entry.problem


def test_the_warning_is_public() -> None:
    assert issubclass(cg.TuningWarning, UserWarning)


def test_similar_are_the_problem_itself_and_other_types(fresh: Path, problem: Problem) -> None:
    one, other = (make_entry(dataclasses.replace(problem, dtype=dtype)) for dtype in ("f16", "f32"))
    best = make_entry(dataclasses.replace(problem, dtype="bf16"), rule=None, decisions={}, plan="")
    elsewhere = make_entry(problem, parse_target("llvm -mcpu=x86-64-v2"))
    logs.append(fresh, [one, other, best, elsewhere])
    assert lookup.similar(problem, TARGET, fresh) == [other.choice, one.choice]
    assert lookup.similar(dataclasses.replace(problem, dtype="f16"), TARGET, fresh) == [one.choice, other.choice]
    assert lookup.similar(problem, TARGET, fresh / "nothing") == []


def test_similar_are_the_shipped_ones_too(fresh: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = make_entry(problem), make_entry(problem, decisions={"tile": 2})
    monkeypatch.setattr(logs, "SHIPPED", fresh / "shipped")
    logs.append(fresh / "shipped", [theirs])
    logs.append(fresh / "mine", [mine])
    assert lookup.similar(problem, TARGET, fresh / "mine") == [mine.choice, theirs.choice]
