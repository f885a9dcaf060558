"""CPUs, and what they can do at most."""

from __future__ import annotations

import json
import os

import pytest

from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.machine import Roof, describe, measure_roof
from tvmconvgrad.machines.targets import parse_target


def test_cpus() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert choose_cpus(len(allowed)) == allowed
    assert choose_cpus(1)[0] in allowed
    with pytest.raises(ValueError, match=f"threads: got {len(allowed) + 1}, expected 1 to {len(allowed)}"):
        choose_cpus(len(allowed) + 1)


def test_the_roof() -> None:
    roof = Roof(100.0, 10.0)
    assert [roof.attainable(intensity) for intensity in (1, 10, 100)] == [10, 100, 100]
    measured = measure_roof(parse_target(), choose_cpus(1))
    assert 1 < measured.gflops < 10000
    assert 0.1 < measured.gigabytes < 10000


def test_a_target_that_the_c_compiler_does_not_know() -> None:
    assert measure_roof(parse_target("llvm"), choose_cpus(1)).gflops > 1


def test_description() -> None:
    found = json.loads(json.dumps(describe(parse_target(), choose_cpus(1))))
    assert found["threads"] == 1
    assert found["cpu"]
    assert found["target"].startswith("llvm")
    assert {"tvmconvgrad", "apache-tvm"} <= set(found["packages"])
