"""What a search has chosen for a problem: a schedule's rule with its decisions. Importing this imports no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

VERSION = 5
"""The version of the schedules. Raise it when the same decisions come to mean another program: older choices are then
ignored."""

DEFAULT_SPACE = "post-order-apply"
"""The rule whose choices are traces of MetaSchedule's default space."""

SPACES = ("decisions", DEFAULT_SPACE)
"""The spaces that can be searched."""


_NAME = 64
_NUMBERS = 64
_MOST = 2**31 - 1


class ChoiceRefused(ValueError):
    """A choice does not apply: it was made for other schedules, or edited."""


@dataclass(frozen=True)
class Choice:
    """A rule's name and the numbers to draw in it; `trace` is JSON, and only for the rule `DEFAULT_SPACE`.

    `plan` is what was measured, as text: the rule with all numbers of its schedule, also those that follow from the
    decisions (`str` of a `Scheduled`). If the same decisions now lead to another plan, the choice is refused.
    """

    rule: str
    decisions: tuple[tuple[str, int], ...]
    plan: str
    trace: str = ""

    @classmethod
    def of(cls, rule: str, decisions: Mapping[str, int], plan: str, trace: str = "") -> Choice:
        """A choice with its decisions in a fixed order."""
        return cls(rule, tuple(sorted(decisions.items())), plan, trace)

    @classmethod
    def from_dict(cls, data: object) -> Choice:
        """The choice that `to_dict` wrote as `data`. Raises ValueError for anything else."""
        if not isinstance(data, dict) or set(data) != {"rule", "decisions", "plan", "trace"}:
            raise ValueError("expected the fields rule, decisions, plan, trace")
        rule, decisions = data["rule"], data["decisions"]
        _need(isinstance(rule, str) and 0 < len(rule) <= _NAME, "rule")
        _need(isinstance(decisions, dict) and len(decisions) <= _NUMBERS, "decisions")
        _need(all(type(number) is int and abs(number) <= _MOST for number in decisions.values()), "decisions")
        _need(all(len(name) <= _NAME for name in decisions), "decisions")
        _need(isinstance(data["plan"], str), "plan")
        _need(isinstance(data["trace"], str) and (data["trace"] != "") == (rule == DEFAULT_SPACE), "trace")
        return cls.of(**data)

    def to_dict(self) -> dict[str, object]:
        """All that determines the program, as JSON's types."""
        return {"rule": self.rule, "decisions": dict(self.decisions), "plan": self.plan, "trace": self.trace}


def made_by(choice: Choice | None, make: Callable[[Choice | None], T]) -> tuple[T, str]:
    """`make(choice)` and ""; or, if it refuses the choice, `make(None)` and the reason."""
    try:
        return make(choice), ""
    except ChoiceRefused as reason:
        return make(None), str(reason)


def _need(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"{name}: invalid value")
