"""The store of built kernels under many processes, killed ones, and damage at any moment."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cache.cache_worker import description, library
from tvmconvgrad.cache.store import CacheWarning, KernelCache

WORKER = Path(__file__).with_name("cache_worker.py")
PATIENCE = 120.0  # what takes longer hangs
HOURS = 3600.0  # in seconds


@contextmanager
def worker(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of cache_worker.py, killed at the end of the block if it still runs."""
    command = [sys.executable, str(WORKER), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], line: str = "") -> Any:
    """Send the line, wait for the end, and return the last answer."""
    answer, _ = process.communicate(line, timeout=PATIENCE)
    assert process.returncode == 0
    return json.loads(answer.splitlines()[-1])


def said(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_eight_processes_build_every_kernel_once(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    log.mkdir()
    same = list(range(6))
    lists = [same, same, same[::-1], same[::-1], [*same[3:], 6, 7], [8, 9, *same], [10], [11, 10]]
    with ExitStack() as stack:
        started = [stack.enter_context(worker("build", folder, log, numbers)) for numbers in lists]
        assert [said(process) for process in started] == ["ready"] * 8
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [finish(process) for process in started] == [[]] * 8
    built = sorted(int(path.name.partition("-")[0]) for path in log.iterdir())
    assert built == list(range(12))
    assert len(KernelCache(folder).entries()) == 12


def test_eight_threads_build_every_kernel_once(cache: KernelCache) -> None:
    builds: list[int] = []

    def build(number: int) -> tuple[bytes, dict[str, Any]]:
        builds.append(number)
        time.sleep(0.02)
        return library(number), {}

    def get(number: int) -> bool:
        return cache.load_or_build(description(number), lambda: build(number)).library == library(number)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(get, [0, 0, 1, 2, 0, 1, 2, 0] * 3))
    assert sorted(builds) == [0, 1, 2]


def test_writers_killed_at_any_moment_leave_whole_kernels_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with worker("kill_writers", folder, 200) as process:
        answer = finish(process)
    assert answer["wrong"] == 0
    assert answer["damaged"] == []
    assert answer["found"] > 0  # some writers came as far as publishing
    left = list(folder.glob("tmp-*"))
    assert left  # and some were killed in the middle
    for path in left:
        os.utime(path, (time.time() - 2 * HOURS,) * 2)
    KernelCache(folder).store(description(0), b"", {})
    assert not list(folder.glob("tmp-*"))


@pytest.mark.parametrize("verb", ["store", "clear"])
def test_only_old_temporary_files_are_removed(tmp_path: Path, verb: str) -> None:
    cache = KernelCache(tmp_path / "cache")
    cache.store({}, b"", {})
    young, old = cache.folder / "tmp-young", cache.folder / "tmp-old"
    for path, age in ((young, 0.9 * HOURS), (old, 1.1 * HOURS)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    cache.clear() if verb == "clear" else cache.store({}, b"", {})
    assert [path.name for path in cache.folder.glob("tmp-*")] == ["tmp-young"]


def test_a_killed_builder_does_not_block(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache", wait_seconds=PATIENCE)
    with worker("hold", tmp_path / "cache", 1) as process:
        assert said(process) == "building"
        process.kill()
        assert cache.load_or_build(description(1), lambda: (b"built", {})).library == b"built"


def test_a_builder_that_hangs_is_waited_for_and_then_done_without(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache", wait_seconds=0.2)
    with worker("hold", tmp_path / "cache", 1) as process:
        assert said(process) == "building"
        with pytest.warns(CacheWarning, match="without waiting"):
            assert cache.load_or_build(description(1), lambda: (b"built", {})).library == b"built"
    assert KernelCache(tmp_path / "cache").load(description(1)) is not None


def test_damage_at_any_moment_yields_no_wrong_kernel(tmp_path: Path) -> None:
    folder, chance = tmp_path / "cache", random.Random(3)
    with ExitStack() as stack:
        started = [stack.enter_context(worker("hammer", folder, 300)) for _ in range(3)]
        damaged = 0
        while any(process.poll() is None for process in started):
            for path in folder.glob("*.kernel"):
                with suppress(OSError):
                    damage(path, chance)
                    damaged += 1
            time.sleep(0.002)
        assert [finish(process) for process in started] == [0, 0, 0]
    assert damaged > 30


def damage(path: Path, chance: random.Random) -> None:
    """One of the things that befall files."""
    kind = chance.randrange(6)
    if kind == 0:
        os.truncate(path, chance.randrange(path.stat().st_size + 1))
    elif kind == 1:
        with open(path, "r+b") as file:
            file.seek(chance.randrange(20_000))
            file.write(chance.randbytes(100))
    elif kind == 2:
        with open(path, "r+b") as file:
            file.write(bytes(20_000))
    elif kind == 3:
        path.unlink()
    elif kind == 4:
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
        path.symlink_to("/dev/zero")
