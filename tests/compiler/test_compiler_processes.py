"""Real kernels built by many processes, killed ones among them, and used by processes that cannot build."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compiler import kernel_worker
from tvmconvgrad.cache.store import CacheWarning, KernelCache
from tvmconvgrad.common import process

PATIENCE = 240.0  # seconds: what takes longer hangs


@contextmanager
def worker(folder: Path, heights: list[int], log: Path | None = None, **variables: str) -> Iterator[Any]:
    """A process that is ready to build; killed at the end of the block if it still runs."""
    command = [sys.executable, kernel_worker.__file__, json.dumps(heights), str(log or "")]
    environment = {**os.environ, "TVMCONVGRAD_CACHE_DIR": str(folder), **variables}
    environment["PYTHONPATH"] = os.pathsep.join(path or "." for path in sys.path)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def begin(process: Any) -> None:
    assert json.loads(process.stdout.readline()) == "ready"
    process.stdin.write("go\n")
    process.stdin.flush()


def finish(process: Any) -> Any:
    answer, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    return json.loads(answer.splitlines()[-1])


def run(folder: Path, heights: list[int], **variables: str) -> Any:
    with worker(folder, heights, None, **variables) as process:
        begin(process)
        return finish(process)


@pytest.mark.slow
def test_eight_processes_build_each_kernel_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    log.mkdir()
    same = [4, 5, 6]
    lists = [same, same, same[::-1], same[::-1], [6, 7], [8, 4], [9], [10, 9]]
    with ExitStack() as stack:
        processes = [stack.enter_context(worker(folder, heights, log)) for heights in lists]
        for process in processes:
            begin(process)
        assert [finish(process)["wrong"] for process in processes] == [[]] * 8
    assert sorted(int(path.name.partition("-")[0]) for path in log.iterdir()) == [4, 5, 6, 7, 8, 9, 10]
    assert len(KernelCache(folder).entries()) == 7


@pytest.mark.slow
def test_builders_killed_at_any_moment(tmp_path: Path) -> None:
    folder, log, chance = tmp_path / "cache", tmp_path / "log", random.Random(5)
    log.mkdir()
    killed = 0
    for turn in range(10):
        heights = list(range(4 + 4 * turn, 8 + 4 * turn))  # that nobody has built
        with worker(folder, heights, log) as one, worker(folder, heights[::-1], log) as other:
            before = len(list(log.iterdir()))
            begin(one)
            begin(other)
            end = time.monotonic() + PATIENCE
            while len(list(log.iterdir())) == before and time.monotonic() < end:
                time.sleep(0.005)
            built = len(KernelCache(folder).entries())
            while turn % 2 and len(KernelCache(folder).entries()) == built and time.monotonic() < end:
                time.sleep(0.005)  # until one is there, and others are under way
            time.sleep(0 if turn % 2 else chance.uniform(0, 0.3))
            killed += (one.poll() is None) + (other.poll() is None)
    assert killed == 20
    heights = list(range(4, 44))
    found = len(KernelCache(folder).entries())
    assert 0 < found < len(heights)
    assert run(folder, heights)["wrong"] == []
    assert len(KernelCache(folder).entries()) == len(heights)


def test_kernels_in_the_cache_need_no_compiler(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert run(folder, [4, 5])["wrong"] == []
    implicit = {"PATH": str(tmp_path), "CXX": "/nowhere/c++", "CC": "/nowhere/cc"}
    assert run(folder, [5, 4], **implicit) == {"wrong": [], "heavy": []}


@pytest.mark.parametrize("damage", ["cut", "flipped", "library of another kernel"])
def test_a_damaged_kernel_is_built_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    for height in (5, 4):
        assert not in_new_memory(height)
    paths = sorted((tmp_path / "cache").glob("*.kernel"))
    assert len(paths) == 2
    contents = [path.read_bytes() for path in paths]
    for path, content, other in zip(paths, contents, contents[::-1], strict=True):
        middle = len(content) * 3 // 4
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:middle], "flipped": flipped, "library of another kernel": other}[damage])
    for height in (4, 5):
        with pytest.warns(CacheWarning, match="set aside and will be built again"):
            assert not in_new_memory(height)
        assert not in_new_memory(height)  # and was kept: no warning
    assert len(KernelCache().entries()) == 2


def in_new_memory(height: int) -> bool:
    """Whether a result is wrong, by a kernel from the disk."""
    process.forget()
    return kernel_worker.wrong(height)
