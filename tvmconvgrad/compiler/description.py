"""What a kernel is built from: the key that it has in the cache. Importing this imports no compiler."""

from __future__ import annotations

import platform
from typing import Any

from tvmconvgrad.cache import sources
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers import environment


def describe(
    problem: Problem, target: Target, schedule: str | None = None, choice: Choice | None = None
) -> dict[str, Any]:
    """All that determines a kernel's code, as JSON's types: the cache's key."""
    return {
        "problem": problem.key,
        "target": str(target),
        "schedule": schedule,
        "choice": None if choice is None else choice.to_dict(),
        "sources": sources.digest(*target.backend.sources),
        **environment.versions(),
        "machine": platform.machine(),
        "system": platform.system(),
    }
