"""Candidates that are built here and measured elsewhere: packs, and what is found by them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost")
pytest.importorskip("psutil")

from tests.tuning.conftest import OP, SHAPES
from tests.tuning.test_gpu import TASK as GPU_TASK
from tests.tuning.test_gpu import Pretended, needs_nvcc
from tvmconvgrad.compiler.llvm import compile_problem
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.records import logs, lookup
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import DamagedEntry, Entry, parse
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.remote import offline
from tvmconvgrad.tuning.remote.offline import measure_pack
from tvmconvgrad.tuning.remote.pack import CONTENTS, DamagedPack, Pack
from tvmconvgrad.tuning.remote.packing import pack
from tvmconvgrad.tuning.search.tasks import make_tasks
from tvmconvgrad.tuning.workers.measure import LocalMeasurer
from tvmconvgrad.tuning.workers.pool import TrialFailed

TRIALS = 5
ROOT = Path(__file__).parents[2]


def packed(path: Path, tasks: Sequence[Task], folder: Path, trials: int = TRIALS) -> Pack:
    count, failures = pack(path, tasks[0].target, tasks, trials, folder, lambda *_: None)
    assert not failures
    found = Pack(path)
    assert count == sum(len(task.candidates) for task in found.tasks)
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one task for this CPU, to be copied."""
    folder = tmp_path_factory.mktemp("pack")
    tasks = make_tasks([("small/filters", OP.problem(*SHAPES))], parse_target(None), 1, "")
    packed(folder / "pack.zip", tasks, folder / "logs")
    return folder / "pack.zip"


class Told(LocalMeasurer):
    """A machine on which each further library is faster than the one before, by a factor."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self._factor = factor
        self.prepared: list[Task] = []
        self.compared: list[list[str]] = []

    def prepare(self, task: Task, library: str) -> None:
        self.prepared.append(task)

    def measure(self, library: str, limit: float) -> list[float]:
        return [self._factor ** int(Path(library).name)]

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        self.compared.append([Path(library).name for library in libraries])
        return [self.measure(library, 1.0) * rounds for library in libraries]


def test_a_pack_begins_with_the_default_and_has_different_programs(file: Path) -> None:
    (task,) = Pack(file).tasks
    assert task.names == ("small/filters",)
    assert task.candidates[0].decisions == ()
    _, facts = compile_problem(task.problem, parse_target(None))
    assert task.candidates[0].plan == facts["schedule"]
    assert len({each.plan for each in task.candidates}) == len(task.candidates) == TRIALS


def test_the_fastest_candidate_is_what_a_log_has(file: Path, tmp_path: Path, logs_here: Path) -> None:
    measurer, found = Told(), tmp_path / "found.jsonl"
    assert measure_pack(Pack(file), found, measurer, 3, "a CPU", say=lambda _: None) == 0
    assert measurer.compared == [["0", "4", "3", "2"]]  # the default, and the best
    entry = parse(found.read_text())
    assert (entry.threads, entry.cpu, entry.trials, entry.gain) == (3, "a CPU", TRIALS, 2.0**4)
    (task,) = Pack(file).tasks
    assert entry.choice == task.candidates[4]
    logs.append(logs_here, [entry])
    choice = lookup.find(task.problem, parse_target(None)).choice
    _, facts = compile_problem(task.problem, parse_target(None), choice=choice)
    assert facts["schedule"] == entry.plan


def test_a_default_that_is_best(file: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    measure_pack(Pack(file), found, Told(factor=2.0), 1, "a CPU", say=lambda _: None)
    entry = parse(found.read_text())
    assert (entry.rule, entry.gain, entry.seconds) == (None, 1.0, 1.0)


def test_what_was_measured_is_not_measured_again(file: Path, tmp_path: Path) -> None:
    found, said = tmp_path / "found.jsonl", []
    for machine, threads in (("a CPU", 1), ("a CPU", 1), ("a CPU", 2), ("another", 2)):
        measurer = Told()
        measure_pack(Pack(file), found, measurer, threads, machine, say=said.append)
        assert len(measurer.prepared) == (0 if said[-1].endswith("was measured before") else 1)
    assert [line.endswith("was measured before") for line in said] == [False, True, False, False]
    assert len(found.read_text().splitlines()) == 3


def test_a_line_that_was_cut_off(file: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    measure_pack(Pack(file), found, Told(), 1, "a CPU", say=lambda _: None)
    whole = found.read_text()
    found.write_text(whole + whole[:100])
    measure_pack(Pack(file), found, Told(), 2, "a CPU", say=lambda _: None)
    assert found.read_text().startswith(whole)
    assert [parse(line).threads for line in found.read_text().splitlines()] == [1, 2]


def test_no_time_is_left(file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert measure_pack(Pack(file), tmp_path / "found.jsonl", Told(), 1, "a CPU", 0.0, said.append) == 0
    assert said == ["[1/1] small/filters: no time is left"]
    assert not (tmp_path / "found.jsonl").exists()


@pytest.mark.parametrize(("bad", "failed"), [("0", 1), ("4", 0)])
def test_a_library_that_cannot_be_measured(file: Path, tmp_path: Path, bad: str, failed: int) -> None:
    """Costs its trial; of the default, the task."""

    class Fails(Told):
        def measure(self, library: str, limit: float) -> list[float]:
            if Path(library).name == bad:
                raise TrialFailed("it took too long")
            return super().measure(library, limit)

    found, said = tmp_path / "found.jsonl", []
    assert measure_pack(Pack(file), found, Fails(), 1, "a CPU", say=said.append) == failed
    assert "it took too long" in said[0]
    assert [parse(line).gain for line in (found.read_text().splitlines() if found.exists() else [])] == (
        [] if failed else [2.0**3]
    )


RUN = """
import sys
ABSENT = {"tvm", "tvm_ffi", "archspec", "rich", "rich_click", "jinja2", "filelock", "platformdirs", "xgboost", "psutil"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from tvmconvgrad.tuning.remote.offline import main
sys.exit(main(sys.argv[1:]))
"""


def test_measuring_takes_no_compiler(file: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    words = [sys.executable, "-c", RUN, str(file), str(found), "--threads", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert f"[1/1] small/filters: {TRIALS} trials, " in done.stdout
    entry = parse(found.read_text())
    assert entry.seconds > 0
    assert entry.target == str(parse_target(None))


def main(*words: object) -> int:
    return offline.main([str(word) for word in words])


def test_what_is_no_pack(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: object) -> str:
        assert main(*words) == 2
        return capsys.readouterr().err

    text, log, cut = tmp_path / "text", tmp_path / "log", tmp_path / "cut.zip"
    text.write_text("no pack")
    log.write_text("no log\n")
    (tmp_path / "line").write_text("no log, and no line")
    assert "text: is no pack of candidates, or is damaged" in told(text, log)
    assert "nowhere" in told(tmp_path / "nowhere", log)
    cut.write_bytes(file.read_bytes()[:-100])
    assert "cut.zip: is no pack" in told(cut, tmp_path / "found")
    assert "log: is no log, or is damaged" in told(file, log)
    assert "line: is no log" in told(file, tmp_path / "line")
    assert (tmp_path / "line").read_text() == "no log, and no line"
    most = len(os.sched_getaffinity(0))
    assert f"--threads: got {most + 1}, expected 1 to {most}" in told(file, tmp_path / "found", "--threads", most + 1)
    assert not (tmp_path / "found").exists()


def changed(file: Path, to: Path, without: str = "", **values: Any) -> Path:
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            if name == CONTENTS:
                new.writestr(name, json.dumps({**json.loads(old.read(name)), **values}))
            elif name != without:
                new.writestr(name, old.read(name))
    return to


def test_a_gpu_that_is_not_there(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise driver.MissingGpu("this machine has no NVIDIA GPU")

    monkeypatch.setattr(driver, "driver", missing)
    assert main(changed(file, tmp_path / "gpu.zip", target="cuda -arch=sm_90"), tmp_path / "found") == 2
    assert capsys.readouterr().err == "error: this machine has no NVIDIA GPU\n"


def test_packs_of_other_schedules_or_without_a_library(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DamagedPack, match=f"version {VERSION + 1} of the schedules, expected 1 and {VERSION}"):
        Pack(changed(file, tmp_path / "later.zip", version=VERSION + 1))
    with pytest.raises(DamagedPack, match="or is damaged"):
        Pack(changed(file, tmp_path / "nothing.zip", tasks=[{"problem": {}}]))
    less = Pack(changed(file, tmp_path / "less.zip", without="0/2"))
    with pytest.raises(DamagedPack, match=r"less\.zip: is damaged .*0/2"):
        measure_pack(less, tmp_path / "found", Told(), 1, "a CPU", say=lambda _: None)
    with pytest.raises(DamagedEntry, match="is no log"):
        (tmp_path / "found").write_text("{}\n")
        measure_pack(Pack(file), tmp_path / "found", Told(), 1, "a CPU")


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ("x", "tasks: expected a list"),
        ({}, "tasks: expected a list"),
        (1, "tasks: expected a list"),
        ([1], ""),
        ([[]], ""),
        ([{"names": "x"}], "names: expected a list of strings"),
        ([{"names": [], "candidates": [{}]}], "expected the fields rule, decisions, plan, trace"),
        ([{"names": [], "candidates": []}], "candidates: expected a list, the default first"),
    ],
)
def test_tasks_that_are_none(file: Path, tmp_path: Path, tasks: Any, expected: str) -> None:
    (good,) = json.loads(zipfile.ZipFile(file).read(CONTENTS))["tasks"]
    several = (
        [{**good, **task} if isinstance(task, dict) else task for task in tasks] if isinstance(tasks, list) else tasks
    )
    path = changed(file, tmp_path / "tasks.zip", tasks=several)
    with pytest.raises(DamagedPack, match=rf"or is damaged \({expected}"):
        Pack(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"rule": 1}, "rule: invalid value"),
        ({"decisions": []}, "decisions: invalid value"),
        ({"decisions": {"a": True}}, "decisions: invalid value"),
        ({"trace": "x"}, "trace: invalid value"),
        ({"x": 1}, "expected the fields rule, decisions, plan, trace"),
    ],
)
def test_choices_that_are_none(file: Path, tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    (task,) = json.loads(zipfile.ZipFile(file).read(CONTENTS))["tasks"]
    task["candidates"][0] |= change
    with pytest.raises(DamagedPack, match=rf"or is damaged \({expected}"):
        Pack(changed(file, tmp_path / "choices.zip", tasks=[task]))


def test_a_pack_with_flags_and_methods_that_are_not_its_own(file: Path, tmp_path: Path) -> None:
    """Encrypted, or compressed by a method that there is not: zipfile has other errors for these."""
    good, path = file.read_bytes(), tmp_path / "flags.zip"
    entry = good.rindex(b"PK\x01\x02")  # pack.json is the last member
    for place, value in ((8, 1), (10, 99), (10, 14)):
        content = bytearray(good)
        content[entry + place] = value
        path.write_bytes(content)
        with pytest.raises(DamagedPack, match="or is damaged"):
            Pack(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        Pack(path)


def test_code_for_another_machine_is_refused(file: Path, tmp_path: Path, gpus: Any) -> None:
    arm = changed(file, tmp_path / "arm.zip", target="llvm -mcpu=cortex-a76")
    with pytest.raises(ValueError, match="is for aarch64"):
        offline.here(Pack(arm).target)
    gpus.set_up(architecture="sm_80")
    with pytest.raises(ValueError, match="does not run on cuda:0, which is sm_80"):
        offline.here(parse_target("cuda -arch=sm_90"))


def test_what_logs_know_is_packed(file: Path, tmp_path: Path) -> None:
    """Also of another type: the next pack goes on from what the last one found."""
    (task,) = Pack(file).tasks
    known = Entry.of(
        Task(task.problem, parse_target(None), 1, "a CPU"), Pack(file).tvm, task.candidates[4],
        trials=5, exhausted=False, gain=2.0, seconds=1.0,
    )  # fmt: skip
    logs.append(tmp_path / "logs", [known])
    other = Task(replace(task.problem, dtype="f16"), parse_target(None), 1, "", ("small/filters f16",))
    for each in (Task(task.problem, parse_target(None), 1, ""), other):
        again = packed(tmp_path / "again.zip", [each], tmp_path / "logs", trials=2 + len(known.decisions))
        assert known.decisions in [dict(choice.decisions) for choice in again.tasks[0].candidates]


@needs_nvcc
@pytest.mark.slow
def test_a_pack_for_a_gpu(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    made = packed(tmp_path / "gpu.zip", [GPU_TASK], tmp_path / "logs", trials=8)
    measure_pack(made, found, Pretended(), 1, "some GPU", say=lambda _: None)
    entry = parse(found.read_text())
    assert (entry.target, entry.trials, entry.cpu) == ("cuda -arch=sm_90", 8, "some GPU")
    assert entry.gain > 1
