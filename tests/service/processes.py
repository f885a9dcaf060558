"""Programs in processes of their own, and what is left of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tvmconvgrad as cg

OP = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 4, 16)
)
SHAPES = (2, 6, 5, 4), (2, 6, 5, 16)
PATIENCE = 60.0  # seconds: what takes longer hangs
_BEGIN = """
import os, signal, sys, threading, time
from tests.service.processes import OP, SHAPES, until
from tvmconvgrad.compiler import service
from tvmconvgrad.compiler.service import Order
from tvmconvgrad.machines.targets import Target
service.PROGRAM = "tests.service.acting"
def order(number, act="make"):
    return Order({"number": number, "act": act}, OP.problem(*SHAPES), Target(), None, None)
def build(number, act="make"):
    return service.find_or_build(order(number, act)).library.decode()
def pids():
    return [worker.pid for pool in service._pools.values() for worker in pool._workers if worker.pid]
def builds(number="*"):
    return len([name for name in os.listdir(os.environ["ACTING_LOG"]) if number in ("*", int(name.split("-")[0]))])
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    """A program with workers that make no kernels; log, cache and temporary files are in the folder."""
    for name in ("log", "temporary"):
        (folder / name).mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "ACTING_LOG": str(folder / "log"),
        "TMPDIR": str(folder / "temporary"),
        "TVMCONVGRAD_CACHE_DIR": str(folder / "cache"),
        "TVMCONVGRAD_COMPILERS": "2",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place or ".") for place in sys.path),
    }
    words, pipe = [sys.executable, "-c", _BEGIN + code], subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)


def run(code: str, folder: Path) -> str:
    """What such a program prints."""
    process = start(code, folder)
    try:
        printed, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return printed.strip()


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def ended(pid: int) -> bool:
    """Whether there is no such process any more, other than one that waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def temporary_files(folder: Path) -> list[str]:
    """What such a program and its workers have left."""
    return sorted(os.listdir(folder / "temporary")) + [path.name for path in folder.glob("cache/tmp-*")]
