"""How many jobs of a pool run at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

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


def pool_of(size: int) -> Pool:
    return Pool(cast(Callable[[], Worker], Idle), size=lambda: size, idle=lambda: SECONDS)


def test_jobs_with_a_limit_run_so_many_at_once() -> None:
    pool, jobs = pool_of(4), Counted()
    for key in range(6):
        pool.submit(key, jobs.work, jobs.tell, at_once=2)
    for left in range(6, 0, -1):
        if left > 1:
            assert jobs.began.acquire(timeout=SECONDS)
        if left == 6:
            assert jobs.began.acquire(timeout=SECONDS)
        assert not jobs.began.acquire(timeout=0.05)
        assert jobs.running == min(left, 2)
        jobs.go.release()
        assert jobs.done.acquire(timeout=SECONDS)
    pool.close()


def test_other_jobs_begin_beside_them() -> None:
    pool, jobs, others = pool_of(3), Counted(), Counted()
    for key in range(3):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    pool.submit("other", others.work, others.tell)
    pool.submit("urgent", others.work, others.tell, urgent=True)
    assert jobs.began.acquire(timeout=SECONDS)
    assert others.began.acquire(timeout=SECONDS) and others.began.acquire(timeout=SECONDS)
    assert (jobs.running, others.running) == (1, 2)
    for each, count in ((others, 2), (jobs, 3)):
        for _ in range(count):
            each.go.release()
            assert each.done.acquire(timeout=SECONDS)
    pool.close()


def test_who_wants_a_job_without_a_limit_lifts_it() -> None:
    pool, jobs = pool_of(2), Counted()
    for key in range(2):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    assert jobs.began.acquire(timeout=SECONDS)
    pool.submit(1, jobs.work, jobs.tell)
    assert jobs.began.acquire(timeout=SECONDS)
    assert jobs.running == 2
    for _ in range(2):
        jobs.go.release()
    for _ in range(3):
        assert jobs.done.acquire(timeout=SECONDS)
    pool.close()


def test_limits_that_are_lifted_let_all_begin() -> None:
    pool, jobs = pool_of(4), Counted()
    for key in range(3):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    assert jobs.began.acquire(timeout=SECONDS)
    for key in range(3):
        pool.submit(key, jobs.work, lambda job: None)
    assert jobs.began.acquire(timeout=SECONDS) and jobs.began.acquire(timeout=SECONDS)
    for _ in range(3):
        jobs.go.release()
        assert jobs.done.acquire(timeout=SECONDS)
    pool.close()


def test_jobs_that_may_not_begin_cost_others_no_thread() -> None:
    made: list[Idle] = []

    def make() -> Worker:
        made.append(Idle())
        return cast(Worker, made[-1])

    pool, jobs = Pool(make, size=lambda: 6, idle=lambda: SECONDS), Counted()
    for key in range(4):
        pool.submit(key, jobs.work, jobs.tell, at_once=1)
    assert jobs.began.acquire(timeout=SECONDS)
    for _ in range(5):
        assert pool.do(object(), lambda worker: 1) == 1
        time.sleep(0.05)  # until it is idle
    assert len(made) == 2
    for _ in range(4):
        jobs.go.release()
        assert jobs.done.acquire(timeout=SECONDS)
    pool.close()
