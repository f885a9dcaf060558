"""Worker processes: they stand still between answers, and their end is told and survived."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tvmconvgrad
from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.tensors import make_inputs
from tvmconvgrad.bench.variants import ours, ours_too
from tvmconvgrad.bench.workers.child import Child, WorkerEnded, WorkerFailed
from tvmconvgrad.bench.workers.session import Session
from tvmconvgrad.layers import select_gradients

PARENT = """
import time
from tvmconvgrad.bench.workers.child import Child
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


def stands(pid: int) -> bool:
    """Whether all threads are stopped at this moment."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


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
        assert stands(pid)
        with pytest.raises(WorkerFailed, match="ours: KeyError: 'job'") as failed:
            child.ask({"do": "prepare"})
        assert stands(pid)
        assert "Traceback" in failed.value.trace
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerEnded, match="ours: the process ended with -9"):
            child.ask({"do": "time", "loops": 1, "wake": True})
        child.restart()
        assert child._process.pid != pid
        pid = child._process.pid
    assert state(pid) == ""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="takes two CPUs")
def test_all_its_threads_stand_still_before_another_runs() -> None:
    ((_, gradient),) = select_gradients(["mobilenet_v2"], substring="block4_project", only="data")
    job = Job.of(gradient.problem)
    with Session([ours("llvm -mcpu=native")], choose_cpus(2)) as session:
        session.prepare(job, make_inputs(gradient.problem, job, 0))
        (child,) = session._children.values()
        for _ in range(100):  # when it answers, its second thread still looks for the next job
            child.ask({"do": "time", "loops": 1, "wake": True})
            assert stands(child._process.pid)


def test_nothing_of_the_definition_runs_beside_what_is_measured_next() -> None:
    """NumPy's threads wait actively after a product: they did so in the benchmark's own process."""
    ((_, gradient),) = select_gradients(["resnet_50"], substring="res2a_branch1", only="filters")
    job = Job.of(gradient.problem)
    tensors = make_inputs(gradient.problem, job, 0)
    with Session([ours("llvm -mcpu=native")], choose_cpus(1)) as session:
        mine = session.prepare(job, tensors).ready["ours"].result
        exact = session.define(job, tensors)
        used, begin = time.process_time(), time.perf_counter()
        assert session._definition is not None
        assert stands(session._definition._process.pid)
        time.sleep(0.1)
        assert time.process_time() - used < (time.perf_counter() - begin) / 2
    assert np.array_equal(mine, exact)


def test_another_state_of_the_project(tmp_path: Path) -> None:
    package = Path(tvmconvgrad.__file__).parent
    shutil.copytree(package, tmp_path / "tvmconvgrad", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "tvmconvgrad" / "version.py").open("a") as source:
        source.write('\n__version__ = "another"\n')
    with Child(ours_too(f"checkout={tmp_path}", ours("llvm")), choose_cpus(1)) as child:
        assert child.versions == {"tvmconvgrad": "another"}


def test_it_ends_with_its_parent() -> None:
    words = [sys.executable, "-c", PARENT.format(cpu=choose_cpus(1)[0])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert reaches(pid, "|Z")
