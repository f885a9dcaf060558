"""So many calls, so many damaged files, one after the other."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NoReturn

from tests.fuzz_surface.calls import Calls
from tests.fuzz_surface.judging import Count, Found, Growth
from tests.fuzz_surface.kinds import make_subjects
from tests.fuzz_surface.pool import make_pool
from tests.fuzz_surface.strange import words
from tests.fuzz_surface.subjects import Subject

MEMORY = 24 << 20
"""Bytes by which a process may grow after the first fifth of its calls: it keeps what it has computed."""

SECONDS = 20
"""For one file, which takes milliseconds."""


def stop(fault: Found) -> None:
    """What is done with a fault where nothing else is said."""
    raise fault


def fuzz_calls(
    random: Random,
    calls: int,
    folder: Path,
    torch: bool,
    kernels: int = 12,
    tell: Callable[[Found], None] = stop,
) -> str:
    """Make calls; what came of them, in words. Faults are told."""
    pool = make_pool(kernels)
    for known in pool:
        _ = known.kernel
    surface, begin, growth = Calls(random, pool, folder, torch), time.monotonic(), None
    for number in range(calls):
        if number == calls // 5:
            growth = Growth()
        try:
            surface.one()
        except Found as fault:
            tell(Found(f"call {number}: {fault}"))
    grown = growth.check(MEMORY) if growth else "too few to tell"
    return f"calls: {surface.count}, {grown}, {time.monotonic() - begin:.0f} s"


def fuzz_files(
    random: Random, files: int, folder: Path, only: Collection[str] = (), tell: Callable[[Found], None] = stop
) -> Iterator[str]:
    """Read damaged files of each kind; what came of them, in words. Faults are told."""
    kinds = make_subjects(random, folder, only)
    for name, subject in kinds:
        if files:
            yield f"{name}: {_fuzz(subject, files, tell)}"


def _fuzz(subject: Subject, files: int, tell: Callable[[Found], None]) -> str:
    count, begin, growth = Count(), time.monotonic(), None
    for number in range(files):
        if number == files // 5:
            growth = Growth()
        content: object = None
        try:
            content = subject.damage()
            with patience(SECONDS):
                count.add(subject.read())
        except Exception as error:
            if not isinstance(error, Found):
                traceback.print_exc()
            tell(Found(f"{type(subject).__name__} {number}: {words(content)}\n{type(error).__name__}: {error}"))
    grown = growth.check(MEMORY) if growth else ""
    return f"{count}, {grown}, {time.monotonic() - begin:.0f} s"


@contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Found where what is done within takes longer: it hangs."""

    def stop_waiting(*_: object) -> NoReturn:
        raise Found(f"it takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop_waiting)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
