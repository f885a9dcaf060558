"""Kernels built ahead, several at once, into the store that the tests share."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import wait
from contextlib import suppress

from tests.support.cases.case import Call


def prefetch(calls: Iterable[Call]) -> None:
    """Build the kernels of these calls; what fails is left to the test."""
    futures = []
    for call in {str(call): call for call in calls}.values():
        with suppress(Exception):  # the test that needs the kernel fails by itself, and says why
            futures.append(call.compile_async())
    wait(futures)
