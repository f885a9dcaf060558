"""Cases from other projects' test suites: accepted, with the pads and the result's shape that they state."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

from tvmconvgrad import spec

BESIDE_THE_PROJECT = Path(__file__).resolve().parents[3] / "shared"
VECTORS = Path(os.environ.get("TVMCONVGRAD_TEST_DATA", BESIDE_THE_PROJECT)) / "vectors"
NEW = {"BackpropFilters": "BackwardWeights", "BackpropData": "BackwardData"}
NEW_ATTRIBUTES = {
    "filter_format": "weights_format",
    "filter_shape": "weights_shape",
    "output_shape": "dst_shape",
}


@cache
def cases():
    """All cases, (file and name, case)."""
    files = sorted(VECTORS.glob("*.json"))
    if not files:
        pytest.skip(f"no test vectors in {VECTORS}; TVMCONVGRAD_TEST_DATA names the folder that has vectors/")
    return [(f"{file.stem}: {case['name']}", case) for file in files for case in json.loads(file.read_text())["cases"]]


def problem_of(case, **changes):
    """The problem of a case by its old names."""
    inputs = [entry["shape"] for entry in case["inputs"]]
    return getattr(spec, case["op"])(**{**case["attrs"], **changes}).problem(*inputs)


def test_every_case_is_accepted():
    count = 0
    for name, case in cases():
        problem = problem_of(case)
        assert problem.output_shape == tuple(case["expected"]["shape"]), name
        assert [list(shape) for shape in problem.input_shapes] == [entry["shape"] for entry in case["inputs"]], name
        count += 1
    assert count > 200


def test_pads_are_those_that_the_sources_used():
    count = 0
    for name, case in cases():
        if "pads_used" in case:
            geometry, used = problem_of(case).geometry, case["pads_used"]
            assert (list(geometry.pads_begin), list(geometry.pads_end)) == (used["begin"], used["end"]), name
            # and the explicit pads give the same problem
            explicit = {"auto_pad": "none", "pads_begin": used["begin"], "pads_end": used["end"]}
            assert problem_of(case, **explicit) == problem_of(case), name
            count += 1
    assert count > 40


def test_the_new_names_say_the_same():
    for name, case in cases():
        new_class = case["op"]
        for old, new in NEW.items():
            new_class = new_class.replace(old, new)
        attributes = {NEW_ATTRIBUTES.get(key, key): value for key, value in case["attrs"].items()}
        inputs = [entry["shape"] for entry in case["inputs"]]
        assert getattr(spec, new_class)(**attributes).problem(*inputs).key == problem_of(case).key, name


def test_the_data_gradients_shape_is_inferred():
    count = 0
    for name, case in cases():
        attributes = case["attrs"]
        if case["op"] != "ConvolutionBackpropData" or attributes["auto_pad"].startswith("same"):
            continue
        inferred = problem_of(case, output_shape=None)
        if inferred.output_shape != tuple(attributes["output_shape"]):  # a rest that no tap reaches
            extra = [y - i for y, i in zip(problem_of(case).geometry.x, inferred.geometry.x, strict=True)]
            assert all(0 <= e < s for e, s in zip(extra, attributes["strides"], strict=True)), name
            inferred = problem_of(case, output_shape=None, output_padding=extra)
        assert inferred == problem_of(case), name
        count += 1
    assert count > 100
