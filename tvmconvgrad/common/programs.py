"""Programs that this process starts while other threads may fork it.

While `subprocess.Popen` starts a program, it has pipes that a child of a fork inherits. By one of them it waits until
the program has begun, and would then wait for the end of that child, too: for ever where the child waits for what the
program makes. So a fork waits until the program has begun (process.py), which takes milliseconds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from tvmconvgrad.common import process


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """As subprocess.Popen."""
    with process.lock:
        return subprocess.Popen(command, **options)


def start_quietly(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A program whose output is kept for `finish`."""
    pipe = subprocess.PIPE
    return start(command, stdout=pipe, stderr=pipe, text=True, errors="replace", **options)


def finish(program: subprocess.Popen[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """The end of such a program, and what it has printed. It is killed where this takes too long (TimeoutExpired)."""
    with program:
        try:
            printed, errors = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    return subprocess.CompletedProcess(program.args, program.returncode, printed, errors)


def run(command: Sequence[str], timeout: float | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program that has ended well, and what it printed. OSError, CalledProcessError, TimeoutExpired."""
    done = finish(start_quietly(command, **options), timeout)
    done.check_returncode()
    return done
