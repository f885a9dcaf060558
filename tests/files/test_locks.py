"""Locks between threads and processes, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cache.cache_support import LIBRARY, build
from tvmconvgrad.cache.store import CacheWarning, KernelCache
from tvmconvgrad.files.locks import acquire, locked
from tvmconvgrad.records import logs
from tvmconvgrad.records.logs import TuningWarning


def no_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, refuse)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EIO])
@pytest.mark.parametrize("leftover", [None, b"", b"4711\nhost\n"])
def test_a_file_system_without_locks_costs_one_warning_and_no_time(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch, number: int, leftover: bytes | None
) -> None:
    if leftover is not None:
        (cache.folder / "locks").mkdir(parents=True, mode=0o700)
        cache.folder.chmod(0o700)
        for place in range(64):
            (cache.folder / "locks" / f"{place:02d}.lock").write_bytes(leftover)
    no_locks(monkeypatch, number)
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for kernel in range(8):
            assert cache.load_or_build({"kernel": kernel}, build).library == LIBRARY
    assert time.monotonic() - begin < 5
    (warning,) = caught
    assert issubclass(warning.category, CacheWarning)
    assert str(warning.message).endswith(f"by locks in {cache.folder}/locks: {os.strerror(number)}")
    assert len(cache.entries()) == 8


def test_tuning_logs_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_locks(monkeypatch, errno.ENOSYS)
    path = tmp_path / "entries.jsonl"
    path.write_text("a line that is none\n")
    with pytest.warns(TuningWarning, match=f"{tmp_path} are written without a lock: {os.strerror(errno.ENOSYS)}"):
        assert logs.rewrite(path) == 1


def test_a_lock_is_for_one_thread_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with locked(tmp_path / "lock", math.inf), locked(tmp_path / "lock", 0):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20


def test_who_waits_too_long_is_told(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "lock", 0)
    with pytest.raises(TimeoutError):
        acquire(tmp_path / "lock", 0.05)
    lock.release()
    acquire(tmp_path / "lock", 0).release()


def forked(work: Callable[[], None]) -> int:
    """The number of a child that does its work, and ends with 0 where that went well."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def test_a_child_does_not_hold_the_lock_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    lives, ends = os.pipe()

    def be_killed() -> None:
        os.close(ends)
        with locked(tmp_path / "lock", 0):
            thread = threading.Thread(target=forked, args=(lambda: os.read(lives, 1),))
            thread.start()
            thread.join()
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        assert os.waitstatus_to_exitcode(os.waitpid(forked(be_killed), 0)[1]) == -signal.SIGKILL
        acquire(tmp_path / "lock", 5).release()
    finally:
        os.close(ends)
        os.close(lives)


def test_a_child_neither_has_its_parents_lock_nor_unlocks_it(tmp_path: Path) -> None:
    lock = acquire(tmp_path / "another", 0)
    turn = ExitStack()
    turn.enter_context(locked(tmp_path / "lock", 0))

    def leave_both() -> None:
        files = len(os.listdir("/proc/self/fd"))
        lock.release()
        turn.close()
        assert len(os.listdir("/proc/self/fd")) == files
        for name in ("lock", "another"):
            with pytest.raises(TimeoutError):
                acquire(tmp_path / name, 0)

    assert os.waitpid(forked(leave_both), 0)[1] == 0
    turn.close()
    lock.release()
    assert os.waitpid(forked(lambda: acquire(tmp_path / "lock", 0).release()), 0)[1] == 0


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with locked(tmp_path / "lock", 0):
            pass
    with locked(tmp_path / "lock", 0), pytest.raises(TimeoutError):
        acquire(tmp_path / "lock", 0)
    assert os.listdir("/proc/self/fd") == before
