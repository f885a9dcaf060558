"""The numbers of a schedule that a search may change: each is drawn from candidates.

By default a rule's cost model draws. A search gives other draws by name, and the rule then schedules the problem again.
A replayed trace would not do, since other numbers may change layouts and the number of loops. What MetaSchedule reads
of the draws is written by tuning/search/annotated.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tvmconvgrad.schedules.factors import divisors, nearest_divisor


@dataclass
class Decisions:
    """The draws of one schedule; `given` fixes some of them by name."""

    given: Mapping[str, int] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def draw(self, name: str, candidates: Sequence[int], default: int) -> int:
        """The number for `name`: the given one, or `default`. Raises ValueError if it is no candidate."""
        self.candidates[name] = tuple(sorted({*candidates, default}))
        self.drawn[name] = self.given.get(name, default)
        if self.drawn[name] not in self.candidates[name]:
            expected = f"expected one of {', '.join(map(str, self.candidates[name]))}"
            raise ValueError(f"decisions: {name} is {self.drawn[name]}, {expected}")
        return self.drawn[name]

    def draw_divisor(self, name: str, count: int, wanted: int) -> int:
        """A divisor of `count` for `name`; by default the one nearest to `wanted`."""
        return self.draw(name, divisors(count), nearest_divisor(count, wanted))
