"""Forks at any moment of a thread's first call: the child, which has no such thread, calls the same and is right.

The first call imports modules, looks into logs, reads the cache, loads a library. What a thread has begun of it when
another one forks, the child must not wait for.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.runtime.layers import program

# A thread makes the first call, and at some of the functions that it enters lets the main thread fork.
FORKS = """
import faulthandler, random, threading
import numpy as np
moments = set(random.Random(SEED).sample(range(EVENTS), FORKS))
count, wanted, results, children = 0, threading.Event(), [], []

def note(frame, event, _):
    global count
    if event == "call":
        count += 1
        if count in moments:
            wanted.set()
            time.sleep(0.02)  # the fork need not wait for this thread, unless it holds what a fork waits for

def in_thread():
    sys.setprofile(note)
    results.append(call())
    sys.setprofile(None)

thread = threading.Thread(target=in_thread)
thread.start()
while thread.is_alive():
    if wanted.wait(0.01):
        wanted.clear()
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(110, exit=True)
            os._exit(0 if call() else 1)
        children.append(child)
thread.join()
failed = [status for status in (os.waitpid(child, 0)[1] for child in children) if status]
print(results, failed, len(children), count)
"""
ONES = """
import tvmconvgrad as cg
ones_1 = {name: (1,) for name in ("strides", "dilations", "pads_begin", "pads_end")}
op = cg.ConvolutionBackpropFilters(**ones_1, filter_shape=(3, 4, 16))
def call(width=7):
    result = op(ones((2, width, 4)), ones((2, width, 16)))
    return [float(tap[0][0]) for tap in result] == [2 * width - 2, 2 * width, 2 * width - 2]
"""
KINDS = {
    "NumPy": "ones = lambda shape: np.ones(shape, np.float32)",
    "NumPy, bf16": "import tvmconvgrad.runtime.arrays as a\nones = lambda s: np.ones(s, a.NUMPY_DTYPES['bf16'])",
    "PyTorch": "import torch\nones = lambda shape: torch.ones(shape)",
}


# The same at moments of a build, which takes a second or more. One of the children wants another kernel.
BUILDS = """
import faulthandler, random, threading
results, children = [], []
thread = threading.Thread(target=lambda: results.append(call()))
thread.start()
for width in (7, 8):
    time.sleep(random.uniform(0, 0.5))
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(110, exit=True)
        os._exit(0 if call(width) else 1)
    children.append(child)
thread.join()
failed = [status for status in (os.waitpid(child, 0)[1] for child in children) if status]
print(results, failed)
"""


def forked(kind: str, code: str, **environment: str) -> list[str]:
    """What a program prints."""
    begin = "import os, sys, time\nimport numpy as np\n" + KINDS[kind] + ONES
    return program(begin + code, prelude="", **environment).split()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fork_in_the_first_call_of_a_kept_kernel(kind: str) -> None:
    if kind == "PyTorch":
        pytest.importorskip("torch")
    assert forked(kind, "print(call())") == ["True"]  # built
    words = {"SEED": str(random.randrange(1 << 30)), "EVENTS": "15000", "FORKS": "12"}
    code = FORKS
    for word, value in words.items():
        code = code.replace(word, value)
    result, failed, children, moments = forked(kind, code)
    assert (result, failed) == ("[True]", "[]"), words
    assert int(children) >= 3
    assert int(moments) > 10_000


def test_a_fork_in_a_build(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    assert forked("NumPy", BUILDS, TVMCONVGRAD_CACHE_DIR=str(tmp_path / "cache")) == ["[True]", "[]"]
