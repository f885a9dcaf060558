"""The folder of test data that does not belong to the project: vectors/ and shapes/."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

BESIDE_THE_PROJECT = Path(__file__).resolve().parents[4] / "shared"


def data_folder() -> Path:
    """Where test data is looked for."""
    return Path(os.environ.get("TVMCONVGRAD_TEST_DATA", BESIDE_THE_PROJECT))


def skip_reason(part: str) -> str:
    """What to say where a part of the test data is missing."""
    return f"no {part}/ in {data_folder()}; TVMCONVGRAD_TEST_DATA names the folder that has {part}/"


def missing(part: str) -> bool:
    return not (data_folder() / part).is_dir()


def needs(part: str) -> pytest.MarkDecorator:
    """Skip a test where a part of the test data is missing."""
    return pytest.mark.skipif(missing(part), reason=skip_reason(part))
