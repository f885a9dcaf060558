"""Exceptions of a worker are the same ones in its parent, or say what they were."""

from __future__ import annotations

import errno
import json

import pytest

from tvmconvgrad.common.errors import MissingLinker, MissingToolkit, TooLarge
from tvmconvgrad.files.temporary import TemporaryFolderError
from tvmconvgrad.records.choice import ChoiceRefused
from tvmconvgrad.workers.errors import RaisedInWorker, describe


class Foreign(ValueError):
    """Of a module that the parent does not have."""


class Stranger(Exception):
    """Of such a module, and of no class that says more."""


def sent(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return RaisedInWorker(json.loads(json.dumps(describe(raised)))).error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("schedule: 'x' is unknown"),
        TypeError("no"),
        MemoryError(),
        KeyError("name"),
        ZeroDivisionError("division by zero"),
        ChoiceRefused("draws nothing"),
        MissingLinker("install\ngcc"),
        MissingToolkit("install nvcc"),
        TooLarge("too many threads"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/nowhere"),
        TemporaryFolderError("/tmp", "No space left on device"),
        OSError(errno.ENOSPC, "No space left on device", "/tmp/x"),
    ],
)
def test_the_same_arrives(error: Exception) -> None:
    found = sent(error)
    assert (type(found), str(found), found.args) == (type(error), str(error), error.args)


def test_what_the_parent_does_not_have_is_of_a_class_that_it_has() -> None:
    found = sent(Foreign("wrong", 3))
    assert (type(found), str(found)) == (ValueError, "Foreign: ('wrong', 3)")
    found = sent(Stranger("odd"))
    assert (type(found), str(found)) == (RuntimeError, "Stranger: odd")
    assert "raise error" in str(found.__cause__)  # where it comes from
    found = sent(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert isinstance(found, ValueError)
    assert "UnicodeDecodeError: 'utf-8' codec" in str(found)
