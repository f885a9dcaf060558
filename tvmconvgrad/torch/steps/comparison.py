"""The choice between PyTorch's kernel and ours for one part of a layer, by the time of the program's own calls.

When our kernel is ready, it and PyTorch's compute the next calls in turn. Each call is computed once. Then the faster
one computes all later calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

CALLS_EACH = 4
"""Calls of each. The first is not counted, since caches and workspace are cold. The fastest of the others counts: other
work on the machine can only make a call slower."""

Times = tuple[float | None, float | None]
"""Ours and PyTorch's, in milliseconds."""


@dataclass
class Comparison:
    """The times of the calls so far, in nanoseconds. Concurrent calls of several threads may add a few more."""

    is_ours: bool | None = None
    """Whether our kernel won; None until that is known."""
    known: Times = (None, None)
    """What an earlier run has measured."""
    decided: Callable[[Comparison], None] | None = None
    """Called once, when `is_ours` becomes known."""
    ours: list[int] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)

    @property
    def next_is_ours(self) -> bool:
        """Whether our kernel computes the next call."""
        if self.is_ours is None:
            return len(self.ours) < len(self.theirs)
        return self.is_ours

    def add(self, is_ours: bool, nanoseconds: int) -> None:
        """Add the time of a call that our kernel (`is_ours`) or PyTorch's has computed."""
        (self.ours if is_ours else self.theirs).append(nanoseconds)
        if self.is_ours is None and min(len(self.ours), len(self.theirs)) >= CALLS_EACH:
            self.is_ours = min(self.ours[1:]) <= min(self.theirs[1:])
            if self.decided is not None:
                self.decided(self)

    @property
    def milliseconds(self) -> Times:
        """The fastest counted call of each, else what an earlier run has measured, else None."""
        ours, theirs = (min(calls[1:]) / 1e6 if len(calls) > 1 else None for calls in (self.ours, self.theirs))
        return (self.known[0] if ours is None else ours), (self.known[1] if theirs is None else theirs)
