"""Worker processes: they stand still between answers, and their end is told and survived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tvmconvgrad.bench.child import Child, WorkerEnded, WorkerFailed
from tvmconvgrad.bench.machine import choose_cpus
from tvmconvgrad.bench.variants import ours

PARENT = """
import time
from tvmconvgrad.bench.child import Child
from tvmconvgrad.bench.variants import ours
child = Child(ours("llvm"), [{cpu}])
print(child._process.pid, flush=True)
time.sleep(60)
"""


def state(pid: int) -> str:
    """The letter of /proc; "" where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def reaches(pid: int, wanted: str) -> bool:
    for _ in range(200):
        if state(pid) in wanted.split("|"):
            return True
        time.sleep(0.02)
    return False


def test_it_stands_still_and_its_end_is_told() -> None:
    with Child(ours("llvm"), choose_cpus(1)) as child:
        pid = child._process.pid
        assert set(child.versions) == {"tvmconvgrad"}
        assert reaches(pid, "T")
        with pytest.raises(WorkerFailed, match="ours: KeyError: 'job'") as failed:
            child.ask({"do": "prepare"})
        assert "Traceback" in failed.value.trace
        assert reaches(pid, "T")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerEnded, match="ours: the process ended with -9"):
            child.ask({"do": "time", "loops": 1, "wake": True})
        child.restart()
        assert child._process.pid != pid
        pid = child._process.pid
    assert state(pid) == ""


def test_it_ends_with_its_parent() -> None:
    words = [sys.executable, "-c", PARENT.format(cpu=choose_cpus(1)[0])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert reaches(pid, "|Z")
