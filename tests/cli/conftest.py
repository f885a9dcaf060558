"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from tvmconvgrad.cli import main

Invoke = Callable[..., Result]


@pytest.fixture
def invoke() -> Invoke:
    """Run the command line in this process; the words are given one by one."""

    def run(*words: object, **options: object) -> Result:
        return CliRunner().invoke(main, [str(word) for word in words], **options)

    return run


@pytest.fixture
def fails(invoke: Invoke) -> Callable[..., str]:
    """Run what a user got wrong: one plain line on stderr, exit code 2; returns the line without "Error: "."""

    def run(*words: object) -> str:
        result = invoke(*words)
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 2
        assert result.stdout == ""
        first, *more = result.stderr.splitlines()
        assert first.startswith("Error: ")
        assert not more
        return first.removeprefix("Error: ")

    return run
