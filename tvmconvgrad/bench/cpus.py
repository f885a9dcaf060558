"""This machine's CPUs: which to use, and what they call themselves."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose_cpus(threads: int) -> list[int]:
    """CPUs for a number of threads: one of each core first, beginning with the last ones.

    Raises ValueError where this process may not use that number of CPUs.
    """
    allowed = sorted(os.sched_getaffinity(0), reverse=True)
    if not 1 <= threads <= len(allowed):
        raise ValueError(f"threads: got {threads}, expected 1 to {len(allowed)}, the CPUs that this process may use")
    cores: set[str] = set()
    first: list[int] = []
    more: list[int] = []
    for cpu in allowed:
        core = _siblings(cpu)
        (more if core in cores else first).append(cpu)
        cores.add(core)
    return sorted([*first, *more][:threads])


def cpu_name() -> str:
    """What the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _siblings(cpu: int) -> str:
    try:
        return Path(_SIBLINGS.format(cpu)).read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
