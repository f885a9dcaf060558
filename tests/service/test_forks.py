"""Processes that fork while a service is there: the child has one of its own, and nobody waits for ever."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.service.processes import run, temporary_files
from tvmconvgrad.common import process

_WAIT = """
def wait(child):
    end = time.monotonic() + 40
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    return "hangs"
"""


def test_the_child_of_a_process_with_a_service_has_its_own(tmp_path: Path) -> None:
    code = """
build(1)
mine = pids()
child = os.fork()
if child == 0:
    assert pids() == []
    assert build(2) and not set(pids()) & set(mine)
    sys.exit(7)
print(wait(child), bool(build(3)), pids() == mine)
"""
    assert run(_WAIT + code, tmp_path) == "7 True True"
    assert temporary_files(tmp_path) == []


def test_forks_while_other_threads_wait(tmp_path: Path) -> None:
    code = """
found = []
threads = [threading.Thread(target=lambda n=n: found.append(build(n, "sleep 0.4"))) for n in range(4)]
for thread in threads:
    thread.start()
statuses = []
for number in range(4):
    until(lambda: builds() > number // 2)
    child = os.fork()
    if child == 0:
        sys.exit(7 if build(number, "sleep 0.4") and build(10 + number) else 1)
    statuses.append(wait(child))
for thread in threads:
    thread.join()
print(statuses, len(found))
"""
    assert run(_WAIT + code, tmp_path) == "[7, 7, 7, 7] 4"
    assert temporary_files(tmp_path) == []


def test_a_fork_while_a_worker_is_started(tmp_path: Path) -> None:
    """Of the pipes that start it the child has none, though it lives on: the parent would wait for their end."""
    code = """
make, begun, children, begin = os.pipe, threading.Event(), [], time.monotonic()
def pipe():
    ends = make()
    begun.set()
    time.sleep(0.2)
    return ends
os.pipe = pipe
thread = threading.Thread(target=build, args=(1,))
thread.start()
while thread.is_alive():
    if begun.wait(0.01):
        begun.clear()
        child = os.fork()
        if child == 0:
            time.sleep(40)
            os._exit(0)
        children.append(child)
took = time.monotonic() - begin
for child in children:
    os.kill(child, 9)
print(len(children) > 0, took < 30)
"""
    assert run(code, tmp_path) == "True True"


def test_a_future_of_the_parent_says_so_in_the_child(tmp_path: Path) -> None:
    code = """
os.environ["ACTING"] = "sleep 1"
future = OP.compile_async(*SHAPES)
until(lambda: builds() == 1)
child = os.fork()
if child == 0:
    try:
        future.result(30)
    except RuntimeError as error:
        os._exit(7 if "forked while the kernel was built" in str(error) else 1)
print(wait(child), future.exception(30) is not None)  # what was made is no library
"""
    assert run(_WAIT + code, tmp_path) == "7 True"


def test_turns_of_threads_that_are_not_in_the_child() -> None:
    turns, inside, over = process.Turns(), threading.Event(), threading.Event()

    def stay() -> None:
        with turns.of("key"):
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        with turns.of("key"), turns.of("key"):
            os._exit(7)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
