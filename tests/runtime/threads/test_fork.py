"""Processes that fork after they have called kernels: the child has none of the threads, and must not miss them."""

from __future__ import annotations

import pytest

from tests.runtime.layers import program

WAIT = """
def wait(child):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    return "hangs"
cg.set_num_threads(4)
assert right()
"""
# Whether the workers still look for work, or sleep.
MOMENTS = pytest.mark.parametrize("pause", ["0", "0.3"], ids=["at once", "when the workers sleep"])


@MOMENTS
@pytest.mark.parametrize("leave", ["sys.exit(7)", "os._exit(7)"])
@pytest.mark.parametrize("calls", [0, 3])
def test_a_forked_child_computes_and_exits(pause: str, leave: str, calls: int) -> None:
    code = f"""
time.sleep({pause})
child = os.fork()
if child == 0:
    for _ in range({calls}):
        assert right()
    {leave}
print(wait(child), right())
"""
    assert program(WAIT + code) == "7 True"


@MOMENTS
def test_a_child_of_multiprocessing(pause: str) -> None:
    code = f"""
import multiprocessing
def work(results):
    results.put(right())
context = multiprocessing.get_context("fork")
time.sleep({pause})
results = context.SimpleQueue()
child = context.Process(target=work, args=(results,))
child.start()
child.join(60)
print(child.exitcode, results.get(), right())
"""
    assert program(WAIT + code) == "0 True True"


def test_a_grandchild_and_a_thread_of_the_child() -> None:
    code = """
import threading
def in_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(right()))
    thread.start()
    thread.join()
    return results[0]
child = os.fork()
if child == 0:
    assert right() and in_thread()
    grandchild = os.fork()
    if grandchild == 0:
        sys.exit(5 if right() and in_thread() else 1)
    sys.exit(wait(grandchild) + right())
print(wait(child))
"""
    assert program(WAIT + code) == "6"


def test_a_fork_while_other_threads_call() -> None:
    code = """
import threading
stop = threading.Event()
wrong = []
def call():
    while not stop.is_set():
        if not right():
            wrong.append(1)
threads = [threading.Thread(target=call) for _ in range(3)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(40):
    child = os.fork()
    if child == 0:
        os._exit(3 if right() and right() else 1)
    codes.add(wait(child))
stop.set()
for thread in threads:
    thread.join()
print(codes, wrong)
"""
    assert program(WAIT + code) == "{3} []"


def test_a_fork_from_a_thread() -> None:
    code = """
import threading
answers = []
def fork():
    assert right()
    child = os.fork()
    if child == 0:
        os._exit(4 if right() else 1)
    answers.append(wait(child))
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print(answers)
"""
    assert program(WAIT + code) == "[4]"
