"""What the tests of signals run in a process of their own: `signal_worker.py SEED MOMENTS [SECONDS]`.

A first call is interrupted, then called again: while TVM is imported, and then MOMENTS times at random moments of at
most SECONDS. Answers what each interrupted call raised, how long after the signal, and whether the next one was right.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.compiler.kernel_worker import wrong
from tvmconvgrad.compiler import service


class TimeIsUp(Exception):
    """What a user's own handler raises."""


_sent = 0.0


def _raise(*_: object) -> None:
    global _sent
    _sent = time.monotonic()
    raise TimeIsUp


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _interrupt(seconds: float) -> Iterator[None]:
    def send() -> None:
        global _sent
        _sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, send)
    timer.start()
    yield
    timer.cancel()


def interrupted(height: int, signals: Callable[[float], object], seconds: float) -> tuple[str, float, bool]:
    raised = "nothing"
    try:
        with signals(seconds):  # type: ignore[attr-defined]
            wrong(height)
    except BaseException as error:
        raised = type(error).__name__
    late = time.monotonic() - _sent if raised != "nothing" else 0.0
    return raised, late, not wrong(height)


def main(seed: str, moments: str, longest: str = "0.12") -> None:
    """Interrupt first calls."""
    signal.signal(signal.SIGALRM, _raise)
    chance = random.Random(int(seed))
    plan = [chance.uniform(0.05, 1.5), *(chance.uniform(0.0, float(longest)) for _ in range(int(moments)))]
    answers = [
        (place % 2, *interrupted(4 + place, (_interrupt, _alarm)[place % 2], seconds))
        for place, seconds in enumerate(plan)
    ]
    for pool in list(service._pools.values()):
        pool.close()
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
    print(json.dumps({"answers": answers, "children": os.path.exists("/proc/self/task") and _children()}))


def _children() -> str:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
