"""A share of the fuzzer, with other values each day; its seed is printed, and is in the words of a fault."""

from __future__ import annotations

import datetime
import importlib.util
from pathlib import Path
from random import Random

import pytest

from tests.fuzz_surface.judging import Found
from tests.fuzz_surface.kinds import KINDS
from tests.fuzz_surface.session import fuzz_calls, fuzz_files
from tvmconvgrad.bundles import registry

SEED = datetime.datetime.now(datetime.timezone.utc).date().toordinal()
CALLS = 2500
FILES = {"bundles": 300, "manifests": 200, "cache": 400, "logs": 300, "lines": 400, "packs": 300, "layers": 300,
         "arrays": 300, "trials": 40}  # fmt: skip
NEEDS = {"trials": "psutil"}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:numpy")


def told(fault: Found) -> None:
    """The fault, with what brings it back."""
    raise Found(f"python -m tests.fuzz_surface --seed {SEED}: {fault}") from fault


@pytest.fixture(autouse=True)
def without_bundles() -> None:
    registry.forget()


def test_calls(tmp_path: Path) -> None:
    torch = importlib.util.find_spec("torch") is not None
    print(f"seed {SEED}:", fuzz_calls(Random(SEED), CALLS, tmp_path, torch, kernels=5, tell=told))


@pytest.mark.parametrize("kind", KINDS)
def test_files(kind: str, tmp_path: Path) -> None:
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    (line,) = fuzz_files(Random(SEED), FILES[kind], tmp_path, {kind}, told)
    print(f"seed {SEED}:", line)
