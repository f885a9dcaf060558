"""How many CPUs this process may use: those of its affinity mask, and no more than a container's quota pays for."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path


def usable_cpus(root: Path | None = None) -> int:
    """At least 1. What the system tells of itself is read below `root`; without one below /, at most once a second."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _quotas_lately(int(time.monotonic())) if root is None else tuple(_quotas(root))
    return max(1, min(allowed, *quotas)) if quotas else allowed


@functools.lru_cache(maxsize=1)
def _quotas_lately(second: int) -> tuple[int, ...]:
    """Reading them takes a millisecond, and a first step of a training asks for 100 kernels."""
    return tuple(_quotas(Path("/")))


def _quotas(root: Path) -> Iterator[int]:
    """CPUs, rounded up, that the control groups of this process allow, and all groups that those are part of."""
    groups = dict(_groups(root))
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, kind = (part.split() for part in line.partition(" - "))
        name = {"cgroup2": "", "cgroup": "cpu"}.get(kind[0]) if len(fields) > 4 and len(kind) > 2 else None
        if name is None or name not in groups or (name and name not in kind[2].split(",")):
            continue
        top, place = (_unescaped(field) for field in fields[3:5])
        folder = root / place.lstrip("/")
        yield from _quota(folder)
        inside = Path(groups[name])
        if inside.is_relative_to(top) and ".." not in inside.parts:
            for part in inside.relative_to(top).parts:
                folder /= part
                yield from _quota(folder)


def _groups(root: Path) -> Iterator[tuple[str, str]]:
    """The control group of this process by each of its controllers; that of version 2 by ""."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        yield from ((name, path) for name in controllers.split(","))


def _quota(folder: Path) -> Iterator[int]:
    """What a group itself is allowed, as version 2 and version 1 of control groups tell it."""
    one_file = [line.split() for line in _lines(folder / "cpu.max")]
    two_files = [_lines(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    for words in (*one_file, [word for lines in two_files for word in lines]):
        if len(words) == 2 and all(word.isascii() and word.isdecimal() for word in words) and int(words[1]):
            yield -(-int(words[0]) // int(words[1]))


def _lines(path: Path) -> list[str]:
    try:
        return os.fsdecode(path.read_bytes()).splitlines()
    except OSError:
        return []


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_quotas_lately.cache_clear)  # it may be of another group
