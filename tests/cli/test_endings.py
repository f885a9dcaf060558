"""How commands end that are not let finish: Ctrl-C, a full disk, a reader that goes away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np
import pytest

import tvmconvgrad.files.new_file
from tests.cli.test_help import ALL
from tvmconvgrad.files.new_file import new_file, write_text

Invoke = Callable[..., Any]
RUN = ["run", "ConvolutionBackpropFilters", "--shapes", "1,6,6,2", "1,6,6,3", "--auto-pad", "same_upper"]
RUN += ["--filter-shape", "3,3,2,3"]
LEAVES = [path for path, command in ALL.items() if not isinstance(command, click.Group)]
NEEDED = {
    "run": RUN[1:],
    "inspect": RUN[1:],
    "bench": ["stem"],
    "tune": ["stem"],
    "layers": ["model.py:model", "--input", "1,2"],
    "build": ["stem", "-o", "bundle"],
    "prepare": ["stem"],
    "merge": ["."],
    "export": ["a.jsonl"],
    "server": ["--tracker", "127.0.0.1:1", "--key", "k"],
}


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_ctrl_c_is_one_line_and_130(path: tuple[str, ...], invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(ALL[path], "callback", interrupted)
    result = invoke(*path, *NEEDED.get(path[-1], []))
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted.\n")


@contextlib.contextmanager
def started(*words: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, as a terminal has it."""
    command = [sys.executable, "-m", "tvmconvgrad", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    """What Ctrl-C makes of a command with all its processes: its exit code and what it says."""
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    with pytest.raises(ProcessLookupError):  # nobody is left of its group
        for _ in range(50):
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    return process.returncode, told


def test_ctrl_c_at_a_question(tmp_path: Path) -> None:
    with started("cache", "clear", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == "Remove"
        code, told = interrupt(process)
    assert (code, told.strip()) == (130, "Interrupted.")


def test_ctrl_c_while_it_measures(tmp_path: Path) -> None:
    with started(*RUN, "--repeat", 2_000_000_000) as process:
        time.sleep(2.5)
        assert interrupt(process) == (130, "Interrupted.\n")


def test_ctrl_c_while_workers_run_keeps_what_was_measured(tmp_path: Path) -> None:
    layer = {"name": "one", "batch": 1, "channels": 8, "filters": 16, "input_size": [9], "kernel": [3]}
    (tmp_path / "a.json").write_text(json.dumps({"layers": [layer] + [{**layer, "name": f"{i}"} for i in range(99)]}))
    words = ["bench", tmp_path / "a.json", "--peers", "none", "--rounds", 99, "--json", tmp_path / "found.json"]
    with started(*words) as process:
        assert process.stdout is not None
        while "one " not in process.stdout.readline():
            assert process.poll() is None
        code, told = interrupt(process)
    assert (code, told) == (130, "Interrupted.\n")
    assert json.loads((tmp_path / "found.json").read_text())["measurements"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "found.json"]


def test_ctrl_c_while_it_builds(tmp_path: Path) -> None:
    with started("build", "resnet_50", "-o", tmp_path / "bundle") as process:
        while not list(tmp_path.iterdir()):
            time.sleep(0.1)
        assert interrupt(process) == (130, "Interrupted.\n")
    assert not list(tmp_path.iterdir())


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


class Full:
    """A file of a disk that is full after some bytes."""

    def __init__(self, file: Any, left: int) -> None:
        self._file, self._left = file, left

    def write(self, data: Any) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(28, os.strerror(28))
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


MODEL = "import torch\n\n\ndef model():\n    return torch.nn.Conv2d(3, 4, 3)\n"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([*RUN, "--out"], "result.npy"),
        (["layers", "model.py:model", "--input", "1,3,5,5", "-o"], "layers.json"),
        (["log", "export"], "a.jsonl"),
    ],
)
def test_a_full_disk(
    words: list[Any], name: str, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "layers":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    monkeypatch.setenv("TVMCONVGRAD_TUNING_DIR", str(tmp_path))
    if words[0] == "log":
        from tests.tuning.conftest import OP, SHAPES
        from tests.tuning.entries import make_entry
        from tvmconvgrad.records import logs

        logs.append(tmp_path, [make_entry(OP.problem(*SHAPES))])
    Path(name).write_text("before")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(tvmconvgrad.files.new_file, "open_new", lambda path: Full(path.open("xb"), 10))
    result = invoke(*words, name)
    assert result.exit_code == 1, result.output
    assert (
        result.stderr
        == f"Error: {'--pack: ' if '--pack' in words else ''}{name}: cannot be written: {os.strerror(28)}\n"
    )
    assert Path(name).read_text() == "before"
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_a_pack_and_pictures_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    from tvmconvgrad.bench.results import plots
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.tuning.remote.pack import new_pack

    monkeypatch.setattr(tvmconvgrad.files.new_file, "open_new", lambda path: Full(path.open("xb"), 10))
    with pytest.raises(OSError, match=os.strerror(28)), new_pack(tmp_path / "a.zip", parse_target(None), "0"):
        pass
    with pytest.raises(OSError, match=os.strerror(28)):
        plots._written(figure, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


@FULL
def test_standard_output_on_a_full_disk() -> None:
    with open("/dev/full", "w") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "tvmconvgrad", "info"],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, f"Error: standard output: {os.strerror(28)}\n")


@pytest.mark.parametrize("words", [["info"], ["--help"]], ids=lambda words: words[0])
def test_a_reader_that_goes_away(words: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "tvmconvgrad", *words]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    assert done.stderr == ""
    assert done.returncode == 141


def test_a_new_file_is_there_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with new_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    with pytest.raises(KeyboardInterrupt), new_file(path) as file:
        file.write(b"two")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_is_what_the_old_one_was(tmp_path: Path) -> None:
    path, link, before = tmp_path / "a.txt", tmp_path / "link", os.umask(0o027)
    try:
        write_text(path, "one")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    link.symlink_to(path)
    write_text(link, "two")
    assert link.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("two", 0o604)
    write_text("/dev/null", "three")


@pytest.mark.parametrize("place", ["none/a.npy", "file/a.npy", "."])
def test_a_path_that_takes_no_file_is_told_before(place: str, tmp_path: Path, fails: Any) -> None:
    (tmp_path / "file").touch()
    told = fails(*RUN, "--out", tmp_path / place)
    assert told.startswith(f"--out: {tmp_path / place}: cannot be written: ")


def test_what_is_written_is_read(tmp_path: Path, invoke: Invoke) -> None:
    assert invoke(*RUN, "--dtype", "f16", "--out", tmp_path / "a.npy").exit_code == 0
    assert np.load(tmp_path / "a.npy").dtype == np.float16
