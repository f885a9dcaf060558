"""tvmconvgrad tune and log, as a user runs them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

import tvmconvgrad as cg
from tests.cli import searching
from tvmconvgrad.common import process
from tvmconvgrad.records import logs, lookup
from tvmconvgrad.records.entry import parse

pytest.importorskip("xgboost")
pytest.importorskip("psutil")

Invoke = Callable[..., Result]
Fails = Callable[..., str]

WORDS = ["ConvolutionBackpropFilters", "--shapes", "1,9,8", "1,9,16", "--auto-pad", "same_upper"]
ONE = [*WORDS, "--filter-shape", "3,8,16", "--threads", "1"]
# a layer with more candidates than a search with fifty kills measures
MANY = ["ConvolutionBackpropData", "--shapes", "1,32,64", "3,64,64", "--auto-pad", "same_upper"]
MANY += ["--output-shape", "1,32,64", "--threads", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs of their own."""
    monkeypatch.setenv(logs.VARIABLE, str(tmp_path / "logs"))
    monkeypatch.setattr(lookup, "_read", {})
    process.forget()
    return tmp_path / "logs"


def compiled() -> cg.Kernel:
    op = cg.ConvolutionBackpropFilters(
        strides=(1,), dilations=(1,), auto_pad="same_upper", filter_shape=(3, 8, 16)
    )  # fmt: skip
    return op.compile((1, 9, 8), (1, 9, 16))


def test_from_a_search_to_a_kernel(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    first = invoke("tune", *ONE, "--trials", 4, "--report", report)
    assert first.exit_code == 0, first.output
    assert "[1/1] ConvolutionBackpropFilters f32: " in first.output
    assert "4 trials" in first.output
    assert "geometric mean" in first.output
    assert "<svg" in report.read_text()
    assert compiled().origin in ("tuned: the user's log", "default, found to be the best: the user's log")
    again = invoke("tune", *ONE, "--trials", 4, "--report", tmp_path / "report.png")
    assert "was tuned before" in again.output
    more = invoke("tune", *ONE, "--trials", 6, "--quiet")
    assert "6 " in more.output
    assert "[1/1]" not in more.output
    (path,) = logs.files(folder)
    assert [parse(line).trials for line in path.read_text().splitlines()] == [4, 6]
    check_log(invoke, folder, tmp_path)


def check_log(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    listed = invoke("log", "list")
    assert "1 entry in" in listed.output
    assert "ConvolutionBackpropFilters f32" in listed.output
    assert "removed 1 line from" in invoke("log", "prune").output
    assert "1 entry of use" in invoke("log", "check").output
    assert "wrote 1 entry to" in invoke("log", "export", tmp_path / "out.jsonl").output
    other = tmp_path / "other"
    for count in (1, 0):
        merged = invoke("log", "merge", tmp_path / "out.jsonl", "--log-dir", other)
        assert f"added {'1 entry' if count else '0 entries'} to" in merged.output
    assert "wrote 1 record to" in invoke("log", "export", tmp_path / "database", "--metaschedule").output
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    assert len(JSONDatabase(work_dir=str(tmp_path / "database"))) == 1
    assert "removed the trials of 1 target\n" in invoke("log", "prune", "--trials").output
    (path,) = logs.files(folder)
    path.write_text(path.read_text() + "garbage\n")
    bad = invoke("log", "check")
    assert bad.exit_code == 1
    assert "line 2" in bad.output


def test_layers_of_a_file(invoke: Invoke, tmp_path: Path) -> None:
    layer = {"batch": 1, "channels": 8, "filters": 16, "input_size": [6], "kernel": [1]}
    layers = [{**layer, "name": name} for name in ("one", "two")]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"layers": layers}))
    result = invoke("tune", path, "--only", "filters", "--trials", 1, "--threads", 1)
    assert result.exit_code == 0, result.output
    assert "[1/1] mine one filters and 1 more" in result.output  # the same problem twice


def test_minutes_end_a_search(invoke: Invoke) -> None:
    begin = time.monotonic()
    result = invoke("tune", *ONE, "--trials", 10_000, "--minutes", 0.05)
    assert result.exit_code == 0, result.output
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "suite: 'nothing' is unknown"),
        (["ConvolutionBackpropData"], "ConvolutionBackpropData is tuned alone, and needs --shapes"),
        (["resnet_50", "--groups", "2"], "--groups goes with one operator, and 'resnet_50' is none"),
        (["resnet_50", "--shapes", "1,2", "3"], "--shapes goes with one operator"),
        (["resnet_50", "--target", "rocm"], "target: kind 'rocm'"),
        (["resnet_50", "--target", "cuda -arch=sm_90", "--threads", "2"], "--threads is of a CPU's calls"),
        (["resnet_50", "--target", "cuda -arch=sm_90", "--space", "post-order-apply"], "is for CPUs, and the target"),
        (["resnet_50", "--target", "llvm -mcpu=cortex-a76"], "its code can be generated here, but not run"),
        (["resnet_50", "--report", "a.pdf"], "--report: a.pdf ends with '.pdf', expected .html or .png"),
        (
            ["resnet_50", "--report", "/nowhere/a.png"],
            "a.png: cannot be written: there is no folder /nowhere",
        ),
        (["resnet_50", "--layer", "zzz"], "no layer of resnet_50 has 'zzz' in its name"),
    ],
)
def test_what_is_wrong_is_told(fails: Fails, words: list[str], told: str) -> None:
    assert told in fails("tune", *words)


def test_without_xgboost(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xgboost" else find(name))
    assert fails("tune", "resnet_50") == 'a search needs xgboost: pip install "tvmconvgrad[tune]"'


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tvmconvgrad", "tune", *ONE, *(str(word) for word in words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trials(folder: Path) -> list[str]:
    found = list(folder.glob("*/trials/*/database_tuning_record.json"))
    return found[0].read_text().splitlines() if found else []


def test_ctrl_c_keeps_what_was_measured(folder: Path, invoke: Invoke) -> None:
    process = start("--trials", 10_000)
    while not trials(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors == "Stopped. What was measured is kept; the same command goes on from there.\n"
    assert "0 of 1 layer" in out
    kept = len(trials(folder))
    result = invoke("tune", *ONE, "--trials", kept)
    assert f"{kept} trials" in result.output


@pytest.mark.parametrize(
    "folder_number", [pytest.param(n, marks=pytest.mark.nightly if n else pytest.mark.slow) for n in range(5)]
)
def test_fifty_kills(tmp_path: Path, folder_number: int) -> None:
    """Killed at any moment, a search goes on from what it had: no measurement is lost, and no file is corrupt.

    Ten times for each folder: the more trials one has, the longer it takes to go on. CI's lanes have the first folder.
    """
    from tvm.s_tir.meta_schedule.database import JSONDatabase

    rng = random.Random(folder_number)
    known: list[str] = []
    grew = 0
    for turn in range(10):
        process = searching.start(turn, *MANY, "--trials", 10_000, "--again", "--log-dir", tmp_path)
        wanted = len(known) + rng.randrange(4)
        while len(trials(tmp_path)) < wanted:
            assert process.is_alive()
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 1))
        process.kill()
        process.join()
        lines = trials(tmp_path)
        whole = lines if not lines or lines[-1].endswith("]]]]") else lines[:-1]
        assert whole[: len(known)] == known
        grew += len(whole) > len(known)
        known = whole
    assert grew >= 5
    process = searching.start(10, *MANY, "--trials", len(known), "--log-dir", tmp_path)
    process.join()
    assert process.exitcode == 0
    (path,) = logs.files(tmp_path)
    entry = parse(path.read_text().splitlines()[-1])
    assert entry.trials == len(known)
    (database,) = tmp_path.glob("*/trials/*")
    assert len(JSONDatabase(work_dir=str(database))) == len(known)


def test_a_gpu_that_is_not_there(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconvgrad.nvidia import driver

    def missing() -> None:
        raise driver.MissingGpu("this machine has no NVIDIA GPU")

    monkeypatch.setattr(driver, "driver", missing)
    told = "--target: 'cuda -arch=sm_90' is measured on a GPU, and this machine has no NVIDIA GPU"
    assert told in fails("tune", "resnet_50", "--target", "cuda -arch=sm_90")


def test_a_pack_for_another_machine(invoke: Invoke, fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "pack.zip"
    done = invoke("tune", *ONE[:-2], "--trials", 3, "--pack", path)
    assert done.exit_code == 0, done.output
    assert "3 candidates for 1 distinct problem\n" in done.output
    assert "python -m tvmconvgrad.tuning.remote.offline pack.zip found.jsonl" in done.output
    assert path.stat().st_size > 0
    told = "is of measuring, and --pack measures nothing"
    for option in (["--threads", 1], ["--minutes", 1], ["--key", "k"], ["--again"], ["--space", "post-order-apply"]):
        assert f"{option[0]} {told}" in fails("tune", *ONE[:-2], "--pack", path, *option)
    nowhere = tmp_path / "nowhere" / "pack.zip"
    assert f"--pack: {nowhere}: cannot be written" in fails("tune", *ONE[:-2], "--pack", nowhere)
