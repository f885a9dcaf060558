"""However a process ends, or is interrupted: no process of its service stays, and no temporary file."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.service.processes import PATIENCE, ended, run, start, temporary_files, until


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked child"])
def test_the_parent_is_killed(busy: bool, forked: bool, tmp_path: Path) -> None:
    code = f"""
build(1)
if {busy}:
    threading.Thread(target=build, args=(2, "hang"), daemon=True).start()
    until(lambda: builds(2))
child = os.fork() if {forked} else 0
if {forked} and child == 0:
    time.sleep(1000)
print(child, *pids(), flush=True)
time.sleep(1000)
"""
    process = start(code, tmp_path)
    child, *workers = map(int, said(process).split())
    assert len(workers) == 1
    assert not ended(workers[0])
    process.kill()
    process.wait()
    try:
        assert until(lambda: ended(workers[0]), 20)
        assert until(lambda: temporary_files(tmp_path) == [], 20)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_a_program_ends_while_much_is_asked_for(tmp_path: Path) -> None:
    code = """
for number in range(50):
    service.begin(order(number, "sleep 1"), lambda job: None)
until(lambda: builds() >= 2)
print(*pids(), time.monotonic(), flush=True)
"""
    *workers, end = run(code + "sys.exit(0)", tmp_path).split()
    assert len(workers) == 2
    assert all(ended(int(pid)) for pid in workers)
    assert len(os.listdir(tmp_path / "log")) < 20
    assert temporary_files(tmp_path) == []
    assert float(end)


def test_ctrl_c_while_waiting(tmp_path: Path) -> None:
    code = """
build(0)
interrupts = 0
for number in range(1, 7):
    main = threading.get_ident()
    def interrupt():
        until(lambda: builds(number))
        time.sleep(0.03 * number)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    try:
        build(number, "sleep 1")
        print("not interrupted")
    except KeyboardInterrupt as error:
        interrupts += 1
        assert str(error) == "" and error.__cause__ is None
    begin = time.monotonic()
    assert "number" in build(number, "sleep 1") and builds(number) == 1  # it went on
print(interrupts)
"""
    assert run(code, tmp_path) == "6"
    assert temporary_files(tmp_path) == []


def test_ctrl_c_while_many_are_prepared(tmp_path: Path) -> None:
    code = """
import tvmconvgrad as cg
os.environ["ACTING"] = "sleep 0.3"
problems = [OP.problem((2, height, 5, 4), (2, height, 5, 16)) for height in range(4, 54)]
def interrupt():
    until(lambda: builds() >= 2)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    cg.prepare(problems)
except KeyboardInterrupt:
    print("interrupted")
begun = builds()
time.sleep(1)
print(builds() - begun < 3 and begun < 10)  # of those that nobody waits for, none begins
os.environ["ACTING"] = "make"
print(cg.prepare(problems[:8]) + begun >= 8)
"""
    assert run(code, tmp_path).split() == ["interrupted", "True", "True"]
    assert temporary_files(tmp_path) == []


def test_ctrl_c_in_a_terminal_ends_the_program_at_once(tmp_path: Path) -> None:
    process = start('print("there", flush=True); build(1, "hang")', tmp_path)
    assert said(process) == "there"
    assert until(lambda: os.listdir(tmp_path / "log"))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert "During handling" not in errors
    (worker,) = (int(name.split("-")[2]) for name in os.listdir(tmp_path / "log"))
    assert until(lambda: ended(worker), 20)
    assert until(lambda: temporary_files(tmp_path) == [], 20)


def test_processes_that_want_the_same_build_it_once(tmp_path: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(6) as threads:
    print(sum("number" in each for each in threads.map(build, range(6), ["sleep 0.05"] * 6)))
"""
    processes = [start(code, tmp_path) for _ in range(4)]
    assert [process.communicate(timeout=PATIENCE)[0] for process in processes] == ["6\n"] * 4
    assert sorted(name.split("-")[0] for name in os.listdir(tmp_path / "log")) == list("012345")
    assert temporary_files(tmp_path) == []


def test_processes_that_prepare_the_same_network(tmp_path: Path) -> None:
    code = """
import tvmconvgrad as cg
os.environ["ACTING"] = "sleep 0.02"
cg.prepare("resnet_50", only="filters", batch=1)
print(cg.prepare("resnet_50", only="filters", batch=1), *pids())
"""
    processes = [start(code, tmp_path) for _ in range(8)]
    said = [process.communicate(timeout=PATIENCE)[0].split() for process in processes]
    assert [words[:1] for words in said] == [["0"]] * 8  # all of it was there
    assert len(os.listdir(tmp_path / "log")) == len(list((tmp_path / "cache").glob("*.kernel"))) == 20
    assert all(ended(int(pid)) for words in said for pid in words[1:])
    assert temporary_files(tmp_path) == []
