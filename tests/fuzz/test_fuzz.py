"""A share of the fuzzer in each run of the tests, and the fuzzer itself: it finds what is wrong, and survives it."""

from __future__ import annotations

import ctypes
import datetime
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fuzz import judging, pool
from tests.fuzz.__main__ import described, replayed
from tests.fuzz.drawing import draw, targets, unscheduled
from tests.fuzz.judging import judge, operands
from tests.fuzz.placing import PLACES
from tests.fuzz.pool import Judged, Pool, Task
from tests.fuzz.running import run, tasks
from tests.fuzz.sample import EVERYWHERE, Sample, as_test
from tests.fuzz.shrinking import shrunk
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Array, Convolution, Tensors
from tests.support.cases.layouts import DATA_FORMATS, filter_formats
from tests.support.cases.random_cases import DTYPES
from tests.support.oracles import reference

SAMPLE = Sample(Case(OPERATORS[0], Convolution(2, 1, 3, 5, (4,), (3,), (2,), (1,), (1,), (0,), (0,))))
LARGER = Sample(
    Case(OPERATORS[1], Convolution(2, 2, 6, 8, (5, 4), (3, 4), (3, 3), (2, 1), (1, 1), (1, 1), (1, 1)), dtype="f16"),
    memory=("unaligned", "strided", "backwards"),
    threads=3,
)


def check(seed: int, seconds: float) -> None:
    found: list[str] = []
    outcome = run(tasks(seed, seconds=seconds), 1, lambda judged: found.append(described(judged)), 30.0)
    command = f"python -m tests.fuzz --seed {seed} --count {outcome.done}"
    print(f"{command}: {outcome}")
    assert not found, "\n".join([command, *found])
    assert outcome.done


def test_samples_of_today() -> None:
    check(int(f"{datetime.datetime.now(tz=datetime.timezone.utc):%Y%m%d}"), 8.0)


def test_samples_of_one_seed() -> None:
    check(38, 4.0)


def test_samples_of_all_kinds_are_drawn() -> None:
    samples = [unscheduled(Random(number)) for number in range(200)]
    assert {sample.case.operator for sample in samples} == set(OPERATORS)
    assert {sample.case.dtype for sample in samples} == set(DTYPES)
    assert {sample.target for sample in samples} == set(targets())
    assert {place for sample in samples for place in sample.memory} == {"new", *PLACES}
    assert {sample.bias for sample in samples} == {"", *PLACES} - {"read-only"}
    assert {(sample.accumulate, sample.result_dtype) for sample in samples} == set(product((False, True), ("", "f32")))
    formats = {(sample.case.operator, sample.case.filter_format) for sample in samples}
    assert formats == {(operator, each) for operator in OPERATORS for each in filter_formats(operator)}
    assert {sample.threads for sample in samples} == {1, 2, 3}
    assert any(sample.is_huge for sample in samples)
    assert any(min(sample.case.convolution.shapes[role]) == 0 for sample in samples for role in sample.case.inputs)


def test_narrow_images_are_drawn_in_all_types_and_layouts() -> None:
    cases = [unscheduled(Random(number)).case for number in range(3000)]
    narrow = {
        (case.dtype, case.data_format)
        for case in cases
        for conv in [case.convolution]
        if (conv.x[-1], conv.k[-1], conv.pads_begin[-1]) == (1, 1, 1) and max(conv.strides) == 1 and conv.c == conv.o
    }
    assert narrow == set(product(DTYPES, DATA_FORMATS))


def test_rules_and_their_numbers_are_drawn() -> None:
    samples = [draw(0, number) for number in range(20)]
    assert len({sample.rule for sample in samples}) > 3
    assert any(sample.given for sample in samples)
    assert draw(0, 7) == samples[7]


@pytest.mark.parametrize("sample", [SAMPLE, LARGER], ids=["plain", "another"])
def test_a_sample_is_the_same_from_json_and_from_its_text(sample: Sample, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    file.write_text(sample.to_json() + "\n")
    assert replayed(file) == [sample]
    assert eval(str(sample)) == sample


def test_what_is_printed_is_a_test() -> None:
    names = {name: value for name, value in globals().items() if name in ("Sample", "Case", "Convolution")}
    verdicts = iter(["", "wrong: 1 of 30"])
    names["judge"] = lambda sample: next(verdicts)
    exec(as_test(SAMPLE, "wrong: 1 of 30"), names)
    names["test_what_the_fuzzer_found"]()
    with pytest.raises(AssertionError):
        names["test_what_the_fuzzer_found"]()


def test_one_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = reference.gradient

    def other(conv: Convolution, result: str, tensors: Tensors) -> reference.Float64:
        found = exact(conv, result, tensors)
        found.flat[-1] += 1
        return found

    assert judge(SAMPLE) == ""
    monkeypatch.setattr(reference, "gradient", other)
    assert judge(SAMPLE).startswith("wrong: 1 of 30, at (4, 2, 1)")


def test_what_a_call_adds_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = replace(SAMPLE, accumulate=True, bias="strided", result_dtype="f32")
    assert judge(sample) == judge(replace(sample, case=sample.case.with_dtype("bf16"))) == ""
    written = judging._written
    for more, verdict in ((1, 0), "wrong: 30 of 30"), ((0, 1), "bias: 5 of 5 wrong"):

        def other(*call: Any, more: tuple[int, int] = more) -> tuple[Array, Array]:
            result, bias = written(*call)
            return result + np.float32(more[0]), bias + np.float32(more[1])

        monkeypatch.setattr(judging, "_written", other)
        assert judge(sample).startswith(verdict)


def test_an_infinity_must_reach_what_it_meets_and_no_tap_that_nothing_meets() -> None:
    conv = Convolution(1, 1, 1, 2, (1,), (1,), (3,), (1,), (1,), (1,), (1,))
    case, tensors = Case(OPERATORS[0], conv), {"x": np.ones((1, 1, 1)), "y": np.array([[[np.inf], [1.0]]])}
    sample, right = replace(SAMPLE, case=case, value="inf"), np.array([[[0, np.inf, 0]], [[0, 1, 0]]], np.float32)
    assert judging._compare(sample, "weights-o", tensors, right) == ""
    for place, value in (((0, 0, 0), np.nan), ((0, 0, 1), 1), ((1, 0, 1), np.nan)):
        wrong = right.copy()
        wrong[place] = value
        assert judging._compare(sample, "weights-o", tensors, wrong).startswith(
            "inf reaches too far, or not far enough"
        )


def test_infinities_everywhere_must_leave_zero_what_nothing_meets() -> None:
    conv = Convolution(1, 1, 1, 1, (1,), (1,), (3,), (1,), (1,), (1,), (1,))
    sample = replace(SAMPLE, case=Case(OPERATORS[0], conv), value=EVERYWHERE)
    tensors = operands(sample)
    for element, fault in ((0, ""), (np.nan, "inf everywhere reaches too far")):
        result = np.float32([[[element, np.inf, 0]]])
        assert judging._compare(sample, "weights-o", tensors, result).partition(",")[0] == fault


def test_an_infinity_in_the_filter_may_reach_what_it_meets_at_pads_and_nothing_else() -> None:
    """The first tap reads x two elements before: a pad for the first element of y, and for the third of x."""
    conv = Convolution(1, 1, 1, 2, (4,), (2,), (3,), (2,), (1,), (2,), (2,))
    filters = np.ones((2, 1, 3))
    filters[0, 0, 0] = np.inf
    for operator, must_be_finite in ((1, [False, False, False, True]), (3, [False, False, True, True])):
        case = Case(OPERATORS[operator], conv)
        other = next(name for name in case.inputs if name != "w")
        tensors = {"w": filters, other: np.ones(conv.shapes[other])}
        exact = reference.gradient(conv, case.result, tensors).astype(np.float32)
        assert np.isfinite(exact).sum() == 3
        for place, is_wrong in enumerate(must_be_finite):
            got = exact.copy()
            got.flat[place] = np.nan
            verdict = judging._compare(replace(SAMPLE, case=case, value="inf"), "", tensors, got)
            assert bool(verdict) == is_wrong, (operator, place)


def test_a_failure_is_made_small() -> None:
    class Judging(Pool):
        """Whatever has at least two channels and three taps in f16 is wrong."""

        def judge(self, tasks: Iterable[Task]) -> Iterator[Judged]:
            for sample in tasks:
                assert isinstance(sample, Sample)
                case = sample.case
                wrong = case.dtype == "f16" and case.convolution.c >= 2 and max(case.convolution.k) >= 3
                yield Judged(sample, sample, "wrong: as it was" if wrong else "")

    small = shrunk(Judging(0), Judged((0, 0), LARGER, "wrong: 5 of 9")).sample
    assert small is not None
    conv = small.case.convolution
    assert (conv.batch, conv.groups, conv.c, conv.o, conv.k) == (1, 1, 2, 1, (3,))
    assert (small.memory, small.threads, small.case.dtype) == (("plain", "plain", "new"), 1, "f16")


def test_a_crash_and_a_hang_are_named_and_the_next_sample_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_serve", serve_badly)
    monkeypatch.setattr(pool, "LIMIT", 4.0)
    children = Pool(2)
    try:
        verdicts = {str(judged.task): judged.verdict for judged in children.judge([(0, n) for n in range(6)])}
    finally:
        children.close()
    assert verdicts["(0, 1)"] == "crash: the process ends with -11"
    assert verdicts["(0, 2)"].startswith("hang: no result after")
    assert [verdicts[f"(0, {n})"] for n in (0, 3, 4, 5)] == [""] * 4


def test_time_in_which_the_fuzzer_itself_is_stopped_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = itertools.count(step=1000)
    monkeypatch.setattr(pool, "_serve", serve_badly)
    monkeypatch.setattr(pool, "LOOK", 0.01)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    children = Pool(1)
    try:
        assert [judged.verdict for judged in children.judge([(0, 0), (0, 3)])] == ["", ""]
    finally:
        children.close()


def serve_badly(connection: Connection) -> None:
    """A child that crashes at sample 1 and hangs at sample 2."""
    while True:
        _, index = connection.recv()
        connection.send(("sample", SAMPLE.to_json()))
        if index == 1:
            ctypes.string_at(0)
        if index == 2:
            connection.recv()
        connection.send(("verdict", ""))
