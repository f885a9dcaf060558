"""The number of threads: how it is set, what it starts, and what it leaves alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import WIDE_DATA, WIDE_FILTERS, floats, layer, program
from tests.support.cases.convolution import Array
from tvmconvgrad.runtime import threads

COUNT = """
def system_threads():
    return len(os.listdir("/proc/self/task"))
"""


@pytest.mark.parametrize("count", [0, -1, 4097, 10**30])
def test_numbers_out_of_range(count: int) -> None:
    with pytest.raises(ValueError, match="num_threads: got"):
        cg.set_num_threads(count)


@pytest.mark.parametrize("count", [None, True, 2.0, "2", [2], np.float32(2)])
def test_what_is_no_number_of_threads(count: Any) -> None:
    with pytest.raises(TypeError, match=r"num_threads: got .* expected an int"):
        cg.set_num_threads(count)


def test_integers_of_other_libraries() -> None:
    cg.set_num_threads(np.int16(3))
    assert (cg.get_num_threads(), type(cg.get_num_threads())) == (3, int)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "4097", "9" * 5000, "²", "0x2"])
def test_a_variable_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_requested", None)
    monkeypatch.setenv("TVMCONVGRAD_NUM_THREADS", text)
    with pytest.raises(ValueError, match="TVMCONVGRAD_NUM_THREADS: got"):
        cg.get_num_threads()
    kernel, inputs, _ = layer()
    monkeypatch.setattr(threads, "_ready", False)
    with pytest.raises(ValueError, match="TVMCONVGRAD_NUM_THREADS: got"):
        kernel(*inputs)
    cg.set_num_threads(2)  # what is set wins over the variable
    assert cg.get_num_threads() == 2
    kernel(*inputs)


def test_every_thread_may_go_on_running_wherever_the_process_may() -> None:
    code = """
assert all(right() for _ in range(20))
allowed = os.sched_getaffinity(0)
end = time.monotonic() + 60
while time.monotonic() < end:  # a worker that wakes leaves the caller's CPU first: for a moment it may not run there
    if good := all(os.sched_getaffinity(int(task)) == allowed for task in os.listdir("/proc/self/task")):
        break
    time.sleep(0.01)
print(good)
"""
    assert program(code, TVMCONVGRAD_NUM_THREADS="4") == "True"


@pytest.mark.parametrize("text", ["3", " 3 ", "03"])
def test_the_variable(text: str) -> None:
    code = COUNT + "before = system_threads()\nassert right()\nprint(cg.get_num_threads(), system_threads() - before)"
    assert program(code, TVMCONVGRAD_NUM_THREADS=text) == "3 2"


def test_an_empty_variable_means_all_cpus() -> None:
    code = "print(cg.get_num_threads() == len(os.sched_getaffinity(0)))"
    assert program(code, TVMCONVGRAD_NUM_THREADS="") == "True"


def test_the_pool_grows_and_serves_all_threads_of_python() -> None:
    code = (
        COUNT
        + """
from concurrent.futures import ThreadPoolExecutor
before, found = system_threads(), []
for count in (1, 3, 2, 8, 1, 4):
    cg.set_num_threads(count)
    assert right()
    found.append(system_threads() - before)
for _ in range(20):
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: right(), range(8)))
end = time.monotonic() + 60
while system_threads() - before != 7 and time.monotonic() < end:  # the system removes a thread a little later
    time.sleep(0.01)
print(found, system_threads() - before)
"""
    )
    assert program(code) == "[0, 2, 2, 7, 7, 7] 7"


def test_results_of_one_two_three_and_eight_threads_are_the_same_bits() -> None:
    for case in (WIDE_FILTERS, WIDE_DATA):
        kernel = case.call.compile()
        inputs = [floats(shape, seed) for seed, shape in enumerate(kernel.problem.input_shapes)]
        results = []
        for count in (1, 2, 3, 8, 1):
            cg.set_num_threads(count)
            results.append(kernel(*inputs).tobytes())
        assert len(set(results)) == 1


def test_threads_of_python_with_different_kernels() -> None:
    cg.set_num_threads(3)
    layers = [layer(WIDE_FILTERS), layer(WIDE_DATA), layer()]

    def call(turn: int) -> bool:
        kernel, inputs, want = layers[turn % 3]
        out: Array = np.empty_like(want)
        return all(np.array_equal(kernel(*inputs, out if again % 2 else None), want) for again in range(10))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(60), timeout=100))


def test_the_number_changes_while_others_call() -> None:
    kernel, inputs, want = layer(WIDE_FILTERS)
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(lambda: np.array_equal(kernel(*inputs), want)) for _ in range(300)]
        for count in range(1, 9):
            cg.set_num_threads(count)
        assert all(call.result(timeout=100) for call in calls)


@pytest.mark.parametrize("cpus", ["{0}", "all"])
def test_affinity_is_left_alone(cpus: str) -> None:
    code = f"""
import time
every = os.sched_getaffinity(0)
wanted = every if {cpus!r} == "all" else {{min(every)}}
os.sched_setaffinity(0, wanted)
before = set(os.listdir("/proc/self/task"))
for count in (1, 2, 5):
    cg.set_num_threads(count)
    assert right()
new = set(os.listdir("/proc/self/task")) - before
alike = lambda: all(os.sched_getaffinity(int(task)) == wanted for task in new)
end = time.monotonic() + 5  # a worker that has just left its launcher's CPU is still about to say where it may run
while not alike() and time.monotonic() < end:
    time.sleep(0.01)
print(len(new), alike(), os.sched_getaffinity(0) == wanted)
"""
    assert program(code) == "4 True True"


def test_the_affinity_decides_how_many_threads_there_are() -> None:
    code = (
        COUNT
        + """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
before = system_threads()
assert right()
print(cg.get_num_threads(), system_threads() - before)
"""
    )
    assert program(code) == "1 0"


def test_an_interrupt_reaches_the_main_thread() -> None:
    code = """
import signal
cg.set_num_threads(4)
assert right()
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
try:
    while True:
        right()
except KeyboardInterrupt:
    print("interrupted", right())
"""
    assert program(code) == "interrupted True"
