"""C and C++ compilers for tests."""

from __future__ import annotations

import shutil

import pytest


def compiler(*names: str) -> str:
    """The first C compiler that there is, or the first of these; without one the test is skipped."""
    found = next((path for name in names or ("gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no {' or '.join(names or ('gcc', 'clang'))}")
    return found
