"""How many jobs of a pool run at the same time."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tvmconvgrad.workers.pool import Pool
from tvmconvgrad.workers.worker import Worker

SECONDS = 20.0


class Idle:
    """A worker that is asked nothing."""

    def start(self) -> None: ...

    def retire(self) -> None: ...

    def close(self) -> None: ...


class Counted:
    """Jobs that wait until they are let go, and how many of them run."""

    def __init__(self) -> None:
        self.running = 0
        self.began, self.go, self.done = (threading.Semaphore(0) for _ in range(3))

    def work(self, worker: Worker) -> None:
        self.running += 1
        self.began.release()
        assert self.go.acquire(timeout=SECONDS)
        self.running -= 1

    def tell(self, job: Any) -> None:
        self.done.release()

    def wait_for(self, count: int) -> None:
        """Until so many more have begun."""
        for _ in range(count):
            assert self.began.acquire(timeout=SECONDS)

    def finish(self, count: int) -> None:
        """Let so many go, one after the other."""
        for _ in range(count):
            self.go.release()
            assert self.done.acquire(timeout=SECONDS)


def pool_of(size: int) -> Pool:
    return Pool(cast(Callable[[], Worker], Idle), size=lambda: size, idle=lambda: SECONDS)


def test_jobs_with_a_limit_run_so_many_at_once() -> None:
    pool, jobs = pool_of(4), Counted()
    for key in range(6):
        pool.submit(key, jobs.work, jobs.tell, at_once=2)
    jobs.wait_for(2)
    for begin_next in (1, 1, 1, 1, 0, 0):
        assert not jobs.began.acquire(timeout=0.05)
        jobs.finish(1)
        jobs.wait_for(begin_next)
    pool.close()


def test_other_jobs_begin_beside_them() -> None:
    pool, jobs, others = pool_of(3), Counted(), Counted()
    for key in range(3):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    pool.submit("other", others.work, others.tell)
    pool.submit("urgent", others.work, others.tell, urgent=True)
    jobs.wait_for(1)
    others.wait_for(2)
    assert (jobs.running, others.running) == (1, 2)
    others.finish(2)
    jobs.finish(3)
    pool.close()


def test_limits_that_are_lifted_let_all_begin() -> None:
    pool, jobs = pool_of(4), Counted()
    for key in range(3):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    jobs.wait_for(1)
    for key in range(3):
        pool.submit(key, jobs.work, lambda job: None)
    jobs.wait_for(2)
    jobs.finish(3)
    pool.close()


def test_jobs_that_may_not_begin_cost_others_no_thread() -> None:
    made: list[Idle] = []

    def make() -> Worker:
        made.append(Idle())
        return cast(Worker, made[-1])

    pool, jobs = Pool(make, size=lambda: 6, idle=lambda: SECONDS), Counted()
    for key in range(4):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    jobs.wait_for(1)
    for _ in range(5):
        assert pool.do(object(), lambda worker: 1) == 1
        time.sleep(0.05)  # until it is idle
    assert len(made) == 2
    jobs.finish(4)
    pool.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_as_it_starts_is_not_waited_for() -> None:
    made = [0]

    def make() -> Worker:
        made[0] += 1
        if made[0] == 1:
            sys.exit()  # ends the thread without a word
        return cast(Worker, Idle())

    pool, jobs = Pool(make, size=lambda: 1, idle=lambda: SECONDS), Counted()
    pool.submit("first", jobs.work, jobs.tell, at_once=1)
    time.sleep(0.1)  # until it has ended
    pool.submit("second", jobs.work, jobs.tell, at_once=1)
    jobs.finish(2)
    pool.close()
