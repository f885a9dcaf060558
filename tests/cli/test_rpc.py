"""tvmconvgrad rpc: what it refuses, and a search on two servers, of which one is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tvmconvgrad.records import logs

pytest.importorskip("tornado")
pytest.importorskip("xgboost")

Fails = Callable[..., str]
WORDS = ["ConvolutionBackpropFilters", "--shapes", "2,14,14,16", "2,14,14,32", "--auto-pad", "same_upper"]
ONE = [*WORDS, "--filter-shape", "3,3,16,32", "--threads", "1"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tracker", "--host", "0.0.0.0"], "--host: 0.0.0.0 is no loopback address, and anyone who reaches it"),
        (["tracker", "--host", "example.org"], "--host: example.org is no loopback address"),
        (["server", "--tracker", "nothing", "--key", "k"], "--tracker: 'nothing', expected HOST:PORT"),
        (["server", "--tracker", "a:99999", "--key", "k"], "--tracker: 'a:99999', expected HOST:PORT"),
        (["server", "--host", "::", "--tracker", "127.0.0.1:1", "--key", "k"], "--host: :: is no loopback address"),
    ],
)
def test_what_is_wrong_is_told(fails: Fails, words: list[str], told: str) -> None:
    assert told in fails("rpc", *words)


def test_rpc_needs_a_key_and_a_tracker(fails: Fails) -> None:
    assert fails("tune", *ONE, "--rpc", "127.0.0.1:9190") == "--rpc and --key go together"
    assert fails("tune", *ONE, "--key", "k") == "--rpc and --key go together"
    assert "--rpc: 127.0.0.1:1: " in fails("tune", *ONE, "--rpc", "127.0.0.1:1", "--key", "k")


@contextlib.contextmanager
def process(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A tracker or a server in a process group of its own, with the address that it says it listens at."""
    command = [sys.executable, "-m", "tvmconvgrad", "rpc", *(str(word) for word in words)]
    found = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert found.stdout is not None
    try:
        yield found, found.stdout.readline().split()[-1]
    finally:
        kill(found)
        found.communicate()


def kill(found: subprocess.Popen[str]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(found.pid, signal.SIGKILL)


@pytest.mark.slow
def test_one_of_two_servers_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, str(tmp_path))
    with contextlib.ExitStack() as stack:
        _, tracker = stack.enter_context(process("tracker", "--port", 9490))
        server = ("server", "--tracker", tracker, "--key", "mine", "--port", 9590)
        first, _ = stack.enter_context(process(*server))
        stack.enter_context(process(*server))
        time.sleep(1)
        command = ["-m", "tvmconvgrad", "tune", *ONE, "--trials", "40", "--rpc", tracker, "--key", "mine"]
        tune = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(records(tmp_path)) < 18:
            assert tune.poll() is None, tune.communicate()
            time.sleep(0.05)
        kill(first)
        out, errors = tune.communicate(timeout=300)
    assert tune.returncode == 0, errors
    assert "40 trials" in out
    found = records(tmp_path)
    assert len(found) == 40
    assert 1 <= sum(", null, {" in line for line in found) <= 2  # one was under way there, and perhaps one sent
    assert "the connection to a server is lost" in (tmp_path / "search.log").read_text()


@pytest.mark.slow
def test_without_servers_a_search_stops_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(logs.VARIABLE, str(tmp_path))
    with process("tracker", "--port", 9490) as (_, tracker):
        command = ["-m", "tvmconvgrad", "tune", *ONE, "--trials", "4000", "--rpc", tracker, "--key", "mine"]
        with process("server", "--tracker", tracker, "--key", "mine", "--port", 9590) as (server, _):
            time.sleep(1)
            tune = subprocess.Popen(
                [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            while not records(tmp_path):
                assert tune.poll() is None, tune.communicate()
                time.sleep(0.05)
            kill(server)
            out, errors = tune.communicate(timeout=120)
    assert "has no free server with the key 'mine'; what was measured is kept" in out
    assert tune.returncode == 130, errors
    assert records(tmp_path)


def records(folder: Path) -> list[str]:
    found = list(folder.glob("*/trials/*/database_tuning_record.json"))
    return found[0].read_text().splitlines() if found else []
