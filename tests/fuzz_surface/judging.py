"""What may come of a call, and whether a process grows."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz_surface.strange import Hurt


class Found(AssertionError):
    """A fault: what was done, and what came of it."""


@dataclass
class Count:
    """How many calls came out how."""

    outcomes: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: str) -> None:
        """One more."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    @property
    def total(self) -> int:
        return sum(self.outcomes.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return f"{self.total} ({parts})"


def judged(
    what: Callable[[], Any], about: Callable[[], str], names: Collection[str], allowed: tuple[type[Exception], ...] = ()
) -> tuple[str, Any]:
    """The outcome of a call and its value: a ValueError or TypeError has to name one of the arguments.

    `allowed` are the other documented errors of the call.
    """
    try:
        return "right", what()
    except Hurt:
        return "Hurt", None
    except allowed as error:
        return type(error).__name__, None
    except (ValueError, TypeError) as error:
        if type(error) in (ValueError, TypeError) and not any(name in str(error) for name in names):
            raise Found(f"{about()}\n{type(error).__name__} names none of {', '.join(names)}: {error}") from error
        if len(str(error)) > 3000:
            raise Found(
                f"{about()}\n{type(error).__name__} of {len(str(error))} characters: {str(error)[:300]}"
            ) from error
        return type(error).__name__, None
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, Found)):
            raise
        raise Found(f"{about()}\n{type(error).__name__}: {str(error)[:500]}") from error


def memory() -> int:
    """Bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


class Growth:
    """Memory and descriptors after a warm-up, against which `check` compares."""

    def __init__(self) -> None:
        self._memory, self._descriptors = memory(), descriptors()

    def check(self, most: int) -> str:
        """In words; Found where there is more memory by `most` bytes, or a descriptor more."""
        grown, opened = memory() - self._memory, descriptors() - self._descriptors
        text = f"memory {grown / 2**20:+.1f} MiB, descriptors {opened:+d}"
        if grown > most or opened > 0:
            raise Found(f"the process has grown: {text}")
        return text
