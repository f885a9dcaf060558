"""Bundles take the kernels that a tuning log has, target by target, and say so; others are set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import TARGETS, example
from tests.support.cases.case import assert_same
from tests.tuning.entries import make_entry
from tvmconvgrad.layers import Layer
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records import logs
from tvmconvgrad.spec.reducing.merging import merged

LAYER = Layer(
    name="tuned", batch=2, channels=16, filters=32, input_size=(12, 12), kernel=(3, 3), pads_begin=(1, 1),
    pads_end=(1, 1),
)  # fmt: skip
GRADIENT = LAYER.gradients()[0]
HERE = parse_target(None)
ALL = [str(HERE), *(target for target in TARGETS if parse_target(target) != HERE)]


def codes(folder: Path) -> dict[str, dict[str, Any]]:
    """What the manifest says of a bundle's only kernel, by the target; its result is checked."""
    (kernel,) = cg.load(folder).values()
    first, second, wanted = example(GRADIENT)
    assert_same(kernel(first, second), wanted)
    (told,) = json.loads((folder / "manifest.json").read_text())["kernels"]
    return {code["target"]: code for code in told["codes"]}


def build(folder: Path) -> dict[str, dict[str, Any]]:
    return codes(cg.build([LAYER], folder, targets=ALL, only="filters"))


def test_a_bundle_has_what_the_log_says_for_its_targets(logs_here: Path, tmp_path: Path) -> None:
    before = build(tmp_path / "before")
    entry = make_entry(merged(GRADIENT.problem), HERE)
    logs.append(logs_here, [entry])
    tuned = build(tmp_path / "tuned")
    assert {code["provenance"] for code in before.values()} == {"default"}
    mine, told = tuned.pop(str(HERE)), before.pop(str(HERE))
    assert (mine["provenance"], mine["schedule"]) == ("tuned: the user's log", entry.plan)
    assert mine["sha256"] != told["sha256"]
    assert tuned == before


def test_a_default_that_was_found_to_be_the_best_is_told(logs_here: Path, tmp_path: Path) -> None:
    logs.append(logs_here, [make_entry(merged(GRADIENT.problem), HERE, rule=None, decisions={}, gain=1.0)])
    assert build(tmp_path / "bundle")[str(HERE)]["provenance"] == "default, found to be the best: the user's log"


def test_an_entry_that_does_not_apply_is_set_aside_with_one_warning(logs_here: Path, tmp_path: Path) -> None:
    before = build(tmp_path / "before")
    logs.append(logs_here, [make_entry(merged(GRADIENT.problem), HERE, plan="weights-o(tile=another one)")])
    with pytest.warns(cg.TuningWarning) as found:
        after = build(tmp_path / "after")
    (warning,) = found
    assert "is set aside, and the default schedule used: its numbers now mean" in str(warning.message)
    assert after == before
