"""One line of a log: what a search found for a problem, and everything that this depends on.

A line is JSON with a digest of itself. Whatever does not look just so is damaged, and nothing of it is believed.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tvmconvgrad.cache.entry import canonical
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import VERSION, Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec import Problem

_NAMES = ("input_names", "output_name")  # old or new ones, for the same code
_LONGEST = 1 << 20  # characters of a line
_MOST = 2**31 - 1


class DamagedEntry(ValueError):
    """A line that is no entry, or is not as it was written."""


@dataclass(frozen=True)
class Entry:
    """What was found for one problem and target. `rule` is None where no candidate was faster than the default."""

    problem: dict[str, Any]
    """The problem as `Problem.to_dict` writes it, with as few axes as it allows."""
    target: str
    tvm: str
    """The version of TVM."""
    version: int
    """The version of the schedules: choice.VERSION."""
    rule: str | None
    decisions: dict[str, int]
    plan: str
    """As in `Choice`."""
    trace: str
    threads: int
    """The threads of the measured calls. Look-up ignores it: otherwise the bits of a result would depend on threads."""
    cpu: str
    date: str
    trials: int
    exhausted: bool
    """Whether every candidate was tried."""
    gain: float
    """The default's time divided by this one's, both run in turn; 1 if the default is best."""
    seconds: float
    """The seconds of a call."""

    @classmethod
    def of(
        cls, task: Task, tvm: str, choice: Choice | None, *, trials: int, exhausted: bool, gain: float, seconds: float
    ) -> Entry:
        """The entry of today's result for a task, by this version of the schedules; without a choice, the default is
        best."""
        return cls(
            problem=task.problem.to_dict(),
            target=str(task.target),
            tvm=tvm,
            version=VERSION,
            rule=choice.rule if choice else None,
            decisions=dict(choice.decisions) if choice else {},
            plan=choice.plan if choice else "",
            trace=choice.trace if choice else "",
            threads=task.threads,
            cpu=task.machine,
            date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            trials=max(trials, 1),
            exhausted=exhausted,
            gain=float(gain),
            seconds=float(seconds),
        )

    @property
    def key(self) -> str:
        """What look-up goes by, as one text."""
        return _key(self.problem, self.target, self.tvm, self.version)

    @property
    def choice(self) -> Choice | None:
        """The program; None for the default."""
        return None if self.rule is None else Choice.of(self.rule, self.decisions, self.plan, self.trace)

    def line(self) -> str:
        """The entry as a line of a file, with its end."""
        content = asdict(self)
        return json.dumps({**content, "digest": _digest(content)}, sort_keys=True) + "\n"


def key(problem: Problem, target: Target | str, tvm: str, version: int) -> str:
    """What an entry is looked up by: all that the code depends on and a choice may not suit any more."""
    return _key(problem.to_dict(), str(target), tvm, version)


def _key(problem: Mapping[str, Any], target: str, tvm: str, version: int) -> str:
    relevant = {name: value for name, value in problem.items() if name not in _NAMES}
    return json.dumps([relevant, target, tvm, version], sort_keys=True)


def parse(line: str, whole: bool = True) -> Entry:
    """The entry of a line. DamagedEntry says what is wrong with it.

    Unless `whole`, the problem is not looked at: who looks a key up has a problem that is right.
    """
    if len(line) > _LONGEST:
        raise DamagedEntry(f"{len(line)} characters are more than an entry has")
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise DamagedEntry("it is no JSON object")
        digest = content.pop("digest", None)
        if digest != _digest(content):
            raise DamagedEntry("it does not match its digest")
        entry = _checked(content)
        if whole:
            Problem.from_dict(entry.problem)
        return entry
    except DamagedEntry:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as reason:
        raise DamagedEntry(f"{type(reason).__name__}: {str(reason)[:200]}") from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(content)).hexdigest()[:16]


def _checked(content: dict[str, Any]) -> Entry:
    names = {field.name for field in fields(Entry)}
    if set(content) != names:
        raise DamagedEntry(f"its fields are {', '.join(sorted(content))[:200]}")
    for name in ("target", "tvm", "cpu", "date"):
        _need(isinstance(content[name], str), name)
    for name in ("version", "threads", "trials"):
        _need(_is_int(content[name]) and content[name] > 0, name)
    for name in ("gain", "seconds"):
        _need(isinstance(content[name], float) and math.isfinite(content[name]) and content[name] > 0, name)
    _need(isinstance(content["exhausted"], bool), "exhausted")
    choice = {name: content[name] for name in ("rule", "decisions", "plan", "trace")}
    Choice.from_dict({**choice, "rule": "the default"} if content["rule"] is None else choice)
    _need(isinstance(content["problem"], dict), "problem")
    return Entry(**content)


def _is_int(value: object) -> bool:
    return type(value) is int and abs(value) <= _MOST


def _need(holds: bool, name: str) -> None:
    if not holds:
        raise DamagedEntry(f"{name}: invalid value")
