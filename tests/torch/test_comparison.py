"""Who computes a part: the faster one of the program's own calls, each of which is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import called, forget_layers
from tvmconvgrad.frontends.parts import Part
from tvmconvgrad.torch import reporting
from tvmconvgrad.torch.dispatch.override import overrides
from tvmconvgrad.torch.state import PATIENCE, SIZES_AT_ONCE
from tvmconvgrad.torch.steps import findings, first
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.comparison import CALLS_EACH, Comparison

X, W = torch.randint(-3, 4, (2, 8, 12, 12)).float(), torch.randint(-3, 4, (8, 8, 3, 3)).float()


def backward() -> tuple[Any, ...]:
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    y = torch.conv2d(x, w)
    return y, *torch.autograd.grad(y, (x, w), torch.ones_like(y))


def built() -> None:
    """As after some time: all kernels are there, and none is being built."""
    for step in called():
        assert step.build is not None
        assert step.build.wait() is not None
    for build in list(Build.pending):  # also of other tests in this process
        build.wait()


def counting(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often PyTorch's own kernels are called from now on, each gradient on its own."""
    counts = {"forward": 0, "data": 0, "weights": 0}
    override = overrides["CPU"]
    their_forward, their_backward = override.their_forward, override.their_backward

    def forward(*arguments: Any) -> Any:
        counts["forward"] += 1
        return their_forward(*arguments)

    def gradients(*arguments: Any) -> Any:
        counts["data"] += arguments[-1][0]
        counts["weights"] += arguments[-1][1]
        return their_backward(*arguments)

    monkeypatch.setattr(override, "their_forward", forward)
    monkeypatch.setattr(override, "their_backward", gradients)
    return counts


def test_the_faster_one_stays() -> None:
    for ours, theirs in ((1, 2), (2, 1)):
        comparison = Comparison()
        order = []
        while comparison.is_ours is None:
            order.append(comparison.next_is_ours)
            comparison.add(order[-1], 100 * (ours if order[-1] else theirs) - len(order))
        assert order == [False, True] * CALLS_EACH
        assert comparison.is_ours is (ours < theirs) is comparison.next_is_ours


def test_the_first_turn_does_not_count() -> None:
    comparison = Comparison()
    for turn in range(CALLS_EACH):
        comparison.add(False, 100 + turn)
        comparison.add(True, 90 if turn else 10_000_000)
    assert comparison.is_ours
    assert comparison.milliseconds == (90e-6, 101e-6)


def test_no_call_is_computed_twice_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = backward()
    with cgt.enabled():
        counts = counting(monkeypatch)
        backward()
        built()
        calls = 1 + 2 * CALLS_EACH
        for _ in range(calls - 1):
            for ours, theirs in zip(backward(), expected, strict=True):
                assert torch.equal(ours, theirs)
        for step, count in zip(called(), counts.values(), strict=True):
            assert step.comparison.is_ours is not None
            assert (len(step.comparison.ours), len(step.comparison.theirs)) == (CALLS_EACH, CALLS_EACH)
            assert (step.calls, count) == (calls, calls - CALLS_EACH)
            step.comparison.is_ours = step.part is Part.DATA
        before = dict(counts)
        for ours, theirs in zip(backward(), expected, strict=True):
            assert torch.equal(ours, theirs)
    assert {name: counts[name] - before[name] for name in counts} == {"forward": 1, "data": 0, "weights": 1}


def test_what_was_found_out_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with cgt.enabled():
        backward()
        built()
        for _ in range(2 * CALLS_EACH):
            backward()
        found = [step.comparison.is_ours for step in called()]
        times = [step.comparison.milliseconds for step in called()]
    assert None not in found
    with findings._path().open("ab") as file:
        file.write(b'{"of": 1}\n[]\nno line\n{"of": {}, "ours_ms": "x", "theirs_ms": null}\n{"cut')
    forget_layers()
    findings.forget()
    with cgt.enabled():
        backward()
        assert [step.comparison.is_ours for step in called()] == found
        for step, (ours, theirs) in zip(called(), times, strict=True):
            assert step.comparison.milliseconds == pytest.approx((ours, theirs))
    forget_layers()
    torch.set_num_threads(torch.get_num_threads() + 1)
    try:
        with cgt.enabled():
            backward()
        assert {step.comparison.is_ours for step in called()} == {None}
    finally:
        torch.set_num_threads(torch.get_num_threads() - 1)
    forget_layers()
    monkeypatch.setattr(findings.sources, "digest", lambda *_: "that of other kernels, which may be faster")
    with cgt.enabled():
        backward()
    assert {step.comparison.is_ours for step in called()} == {None}


def test_deterministic_programs_are_computed_by_one_alone(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with cgt.enabled():
        counts = counting(monkeypatch)
        for _ in range(3):
            backward()
    assert counts == {"forward": 0, "data": 0, "weights": 0}
    assert {(step.calls, len(step.comparison.ours)) for step in called()} == {(3, 0)}


def test_nobody_waits_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes where there is no compiler, and the report says so."""
    monkeypatch.setenv("TVMCONVGRAD_COMPILER", "/nowhere/python")
    expected = backward()
    with cgt.enabled():
        for ours, theirs in zip(backward(), expected, strict=True):
            assert torch.equal(ours, theirs)
        backward()
        rows = cgt.report().rows
    assert len(rows) == 3
    assert all(row.by == "PyTorch" and "/nowhere/python" in row.why for row in rows), rows


def test_programs_whose_sizes_change_for_ever_do_not_build_for_ever() -> None:
    """The kernels of a layer's first sizes are built at once, those of others when a size comes again and again."""
    with cgt.enabled(), torch.no_grad():
        torch.conv2d(torch.ones(1, 8, 12, 12), W)  # the first step
        for width in range(12, 12 + 2 * SIZES_AT_ONCE):
            torch.conv2d(torch.ones(1, 8, 12, width), W)
        assert asked() == [True] * SIZES_AT_ONCE + [False] * SIZES_AT_ONCE
        assert cgt.report().rows[-1].why == "a further size of the input, which came a few times only"
        for _ in range(PATIENCE):
            torch.conv2d(torch.ones(1, 8, 12, 12 + SIZES_AT_ONCE), W)
        assert asked() == [True] * (SIZES_AT_ONCE + 1) + [False] * (SIZES_AT_ONCE - 1)


def asked() -> list[bool]:
    return [step.build is not None and step.build._future is not None for step in called()]


def test_nothing_is_built_before_the_first_layer_comes_again() -> None:
    """Layers that come several times in the first step wait, too."""
    with cgt.enabled(), torch.no_grad():
        torch.conv2d(X, W)
        for _ in range(2):
            torch.conv2d(X[:1], W)
        assert asked() == [False, False]
        assert {row.why for row in cgt.report().rows} == {reporting._FIRST_STEP}
        torch.conv2d(X, W)
        assert asked() == [True, False]
        torch.conv2d(X[:1], W)
        assert asked() == [True, True]


def test_kernels_are_built_though_the_first_layers_never_come_again() -> None:
    """As where an image is encoded once, and then decoded in many steps."""
    with cgt.enabled(), torch.no_grad():
        for width in (12, 11, 10):
            torch.conv2d(X[..., :width], W)
        for step in range(4):
            for batch in (1, 2):
                torch.conv2d(X[:batch, :, 3:], W)
            assert asked() == ([False] * 3 + [step == 3] * 2)


def test_kernels_are_built_though_each_step_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "MOST_CALLS", 5)
    for step in range(7):
        with cgt.enabled(layers=lambda _: True), torch.no_grad():
            torch.conv2d(X, W)
            assert asked()[-1] == (step >= 5)


def test_a_trainings_first_step_ends_with_its_backward_pass() -> None:
    """Though its first layer comes several times."""
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    with cgt.enabled():
        y = torch.conv2d(x, w) + torch.conv2d(x, w)
        assert asked() == [False]
        torch.autograd.grad(y, (x, w), torch.ones_like(y))
        assert asked() == [False] * 3
        torch.conv2d(x, w)
        assert asked() == [True, False, False]


def test_a_program_that_asks_for_no_gradient_in_grad_mode() -> None:
    with cgt.enabled():
        for _ in range(first.MOST_KNOWN):
            torch.conv2d(X, W)
            assert asked() == [False]
        torch.conv2d(X, W)
        assert asked() == [True]


@pytest.mark.parametrize("line", ["[" * 100_000, f'{{"of": 1, "ours_ms": 1{0:0400}, "theirs_ms": 1}}'])
def test_findings_that_no_parser_takes_are_passed_over(line: str) -> None:
    findings._path().parent.mkdir()
    findings._path().write_text(line + '\n{"of": 3, "ours_ms": 1, "theirs_ms": 2}\n')
    assert list(findings.load()) == ["3"]


def test_a_file_that_cannot_be_read_is_said_by_enable_and_not_in_a_step() -> None:
    findings._path().mkdir(parents=True)
    with pytest.warns(UserWarning, match="what was found out about PyTorch's kernels is not read"):
        cgt.enable()
    backward()
    assert len(called()) == 3


def test_the_gradient_by_the_bias_alone_takes_no_turn() -> None:
    """It would win against any weights gradient."""
    grad, sizes = torch.ones(2, 8, 10, 10), [8]
    numbers = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    with cgt.enabled():
        torch.ops.aten.convolution_backward(grad, X, W, sizes, *numbers, [True] * 3)
        built()
        data, weights = called()
        before = len(data.comparison.theirs) + len(data.comparison.ours), len(weights.comparison.theirs)
        by_input, _, by_bias = torch.ops.aten.convolution_backward(grad, X, W, sizes, *numbers, [True, False, True])
    assert len(data.comparison.theirs) + len(data.comparison.ours) == before[0] + 1
    assert (len(weights.comparison.theirs), weights.is_open) == (before[1], True)
    assert by_input.shape == X.shape
    assert torch.equal(by_bias, torch.full((8,), 200.0))
