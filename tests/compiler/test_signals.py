"""Signals at any moment of a first call: what their handlers raise is what the caller gets, and the next call works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.compiler import signal_worker
from tvmconvgrad.compiler.uninterrupted import uninterrupted

PATIENCE = 120.0  # seconds: what takes longer hangs
PROMPT = 1.0  # seconds, on a machine that does much else


@pytest.mark.slow
def test_first_calls_interrupted_at_random_moments(tmp_path: Path) -> None:
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TVMCONVGRAD_CACHE_DIR": str(cache), "TMPDIR": str(temporary)}
    paths = os.pathsep.join(path or "." for path in sys.path)
    done = subprocess.run(
        [sys.executable, signal_worker.__file__, "1", "6"],
        env={**os.environ, "PYTHONPATH": paths, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert len(answer["answers"]) == 7
    for kind, raised, late, right in answer["answers"]:
        assert raised in ("nothing", ("KeyboardInterrupt", "TimeIsUp")[kind])
        assert right
        assert late < PROMPT
    raised = [raised for _, raised, _, _ in answer["answers"]]
    assert raised[0] == "KeyboardInterrupt"  # while TVM is imported
    assert len(raised) - raised.count("nothing") >= 3
    assert answer["children"] == ""
    assert len(list(cache.glob("*.kernel"))) == 7
    assert not list(cache.glob("tmp-*"))
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError("limit"), RuntimeError("can't start new thread")])
def test_what_a_handler_raises_does_not_reach_the_work(raised: BaseException) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        done.set()

    def handle(*_: object) -> None:
        raise raised

    def send() -> None:
        begun.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(raised if isinstance(raised, type) else type(raised)):
            uninterrupted(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    sender.join()
    assert not done.is_set()  # the caller has not waited
    go_on.set()
    assert done.wait(PATIENCE)


def test_the_result_and_errors_of_the_work_are_the_callers() -> None:
    assert uninterrupted(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError), pytest.warns(UserWarning, match="said by a thread"):
        uninterrupted(_fail)
    assert uninterrupted(lambda: uninterrupted(threading.current_thread)) is not threading.current_thread()


def _fail() -> None:
    import warnings

    warnings.warn("said by a thread", stacklevel=1)
    raise ZeroDivisionError


def test_without_a_further_thread_the_caller_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert uninterrupted(threading.current_thread) is threading.current_thread()


def test_a_deep_recursion_has_the_room_of_the_main_thread() -> None:
    before = threading.stack_size(65536)
    try:
        assert uninterrupted(_in_c) is None
        assert threading.stack_size() == 65536
    finally:
        threading.stack_size(before)


def _in_c() -> None:
    json.loads("[" * 900 + "]" * 900)  # a recursion of C that 64 KiB do not hold
