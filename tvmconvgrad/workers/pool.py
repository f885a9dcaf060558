"""Several workers of one kind, shared by all threads of a process. Two that want the same share one job.

A worker has a thread, and both begin with a job that no idle one can take, and end when none has come for some time.
The threads are daemons: a program that ends does not wait for what it has asked for in the background.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tvmconvgrad.workers.worker import Answer, Request, Worker

T = TypeVar("T")
_ENDING = 5.0  # seconds that threads have to put away what they hold, when their pool is closed
_all: weakref.WeakSet[Pool] = weakref.WeakSet()


class PoolClosed(RuntimeError):
    """Nothing is asked of a pool that is closed."""


class Job(Generic[T]):
    """What a worker is to do for whoever waits for it: those whose `callbacks` are called with it when it is done."""

    def __init__(self, key: Hashable, work: Callable[[Worker], T]) -> None:
        self.key, self.work = key, work
        self.callbacks: list[Callback] = []
        self.at_once: int | None = None
        self.error: BaseException | None = None
        self._found: list[T] = []

    def run(self, worker: Worker) -> None:
        """Do it; whatever is raised is for those who wait."""
        try:
            self._found.append(self.work(worker))
        except BaseException as error:
            self.error = error

    def value(self) -> T:
        """What came of it, or was raised."""
        if self.error is not None:
            raise self.error
        return self._found[0]


class Pool:
    """Workers, at most `size()` of them when a job comes, that end after `idle()` seconds without one (None: never).

    A thread that is interrupted in here must leave all as it was: so what changes does so in one step, and whoever
    waits does so on a lock of its own, which nobody else waits for.
    """

    def __init__(
        self, make_worker: Callable[[], Worker], size: Callable[[], int], idle: Callable[[], float | None]
    ) -> None:
        self._make_worker, self._size, self._idle_seconds = make_worker, size, idle
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may come for what its thread is asking for
        self._ready = threading.Condition(self._lock)
        self._first: OrderedDict[Hashable, Job[Any]] = OrderedDict()
        self._later: OrderedDict[Hashable, Job[Any]] = OrderedDict()
        self._running: dict[Hashable, Job[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._workers: list[Worker] = []
        self._starting: set[threading.Thread] = set()  # those that have not looked for a job yet
        self._idle = 0
        self._closed = False

    def submit(
        self,
        key: Hashable,
        work: Callable[[Worker], T],
        callback: Callback,
        urgent: bool = False,
        at_once: int | None = None,
    ) -> Job[T]:
        """Have a function called with a worker, once for all who want the same key at the same time.

        `callback` is called by the thread that has done it. What is urgent goes before what is not. A job with a number
        `at_once`, at least 1, begins while fewer jobs with such a number run. Who wants the same without a number, or
        urgently, takes the job's away. PoolClosed.
        """
        with self._lock:
            if self._closed:
                raise PoolClosed("the pool of workers is closed")
            job = self._running.get(key) or self._first.get(key) or self._later.get(key) or Job(key, work)
            is_new = not job.callbacks
            job.callbacks.append(callback)
            if key in self._running:
                return job
            if is_new or at_once is None or urgent:
                job.at_once = None if urgent else at_once
            if urgent:
                job.work = work
                self._first[key] = job
                self._later.pop(key, None)
            elif key not in self._first:
                self._later[key] = job
            self._call_a_thread()
        return job

    def do(self, key: Hashable, work: Callable[[Worker], T]) -> T:
        """What a function returns for a worker. Who is interrupted while waiting leaves a job that is running alone."""
        done = threading.Lock()
        done.acquire()

        def tell(_: Job[T]) -> None:
            done.release()

        job = self.submit(key, work, tell, urgent=True)
        try:
            done.acquire()
        except BaseException:
            self.leave(job, tell)
            raise
        return job.value()

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer of whoever is idle first, as of Worker.ask."""
        return self.do(object(), lambda worker: worker.ask(request, timeout))

    def leave(self, job: Job[Any], callback: Callback) -> None:
        """Wait no longer. A job that nobody waits for does not begin."""
        with self._lock:
            if callback in job.callbacks:
                job.callbacks.remove(callback)

    def start(self) -> None:
        """Start all workers now: they import what they need meanwhile."""
        with self._lock:
            for _ in range(self._size() - len(self._threads)):
                self._start_thread(Worker.start)

    def close(self, wait: float = _ENDING) -> None:
        """End all; whoever waits gets PoolClosed."""
        with self._lock:
            self._closed = True
            jobs, threads = [*self._first.values(), *self._later.values()], list(self._threads)
            self._first.clear()
            self._later.clear()
            for worker in self._workers:
                worker.retire()
            self._ready.notify_all()
        for job in jobs:
            job.error = PoolClosed("the pool of workers is closed")
            _tell(job)
        end = time.monotonic() + wait
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def begin_as_child(self) -> None:
        """In a forked child: the workers and jobs are the parent's, whose threads are not here."""
        self._begin()

    def _call_a_thread(self) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._starting.intersection_update(self._threads)
        if self._idle + len(self._starting) >= self._ready_to_begin() or len(self._threads) >= self._size():
            self._ready.notify()
            return
        try:
            self._start_thread(lambda worker: None)
        except RuntimeError:  # no more threads: those that there are will come by
            if not self._threads:
                self._first.clear()
                self._later.clear()
                raise

    def _start_thread(self, begin: Callable[[Worker], object]) -> None:
        thread = threading.Thread(target=self._run, args=(begin,), daemon=True, name="tvmconvgrad worker")
        self._starting.add(thread)
        thread.start()
        self._threads.append(thread)

    def _run(self, begin: Callable[[Worker], object]) -> None:
        worker = self._make_worker()
        with self._lock:
            if self._closed:
                return
            self._workers.append(worker)
        try:
            with suppress(OSError):  # the first job raises it again
                begin(worker)
            while (job := self._next()) is not None:
                job.run(worker)
                with self._lock:
                    self._running.pop(job.key, None)
                _tell(job)
                del job
        finally:
            with self._lock:
                self._workers.remove(worker)
            worker.close()

    def _next(self) -> Job[Any] | None:
        """The next job; None where it is time to end."""
        seconds = self._idle_seconds()
        end = None if seconds is None else time.monotonic() + seconds
        with self._lock:
            self._starting.discard(threading.current_thread())
            while not self._closed:
                job = self._take()
                if job is not None:
                    return job
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._idle += 1
                try:
                    self._ready.wait(left)
                finally:
                    self._idle -= 1
            self._threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        return None

    def _take(self) -> Job[Any] | None:
        for queue in (self._first, self._later):
            for key, job in list(queue.items()):
                if job.callbacks and not self._may_begin(job):
                    continue
                del queue[key]
                if job.callbacks:
                    self._running[key] = job
                    return job
        return None

    def _may_begin(self, job: Job[Any]) -> bool:
        return job.at_once is None or self._running_with_limit() < job.at_once

    def _running_with_limit(self) -> int:
        return sum(job.at_once is not None for job in self._running.values())

    def _ready_to_begin(self) -> int:
        """How many of the queued jobs could begin now, if there were threads for them."""
        limits = [job.at_once for queue in (self._first, self._later) for job in queue.values()]
        most = max((limit for limit in limits if limit is not None), default=0)
        unlimited = limits.count(None)
        return unlimited + min(len(limits) - unlimited, max(0, most - self._running_with_limit()))


Callback = Callable[[Job[Any]], object]


def _tell(job: Job[Any]) -> None:
    for callback in job.callbacks:
        callback(job)


def _begin_as_child() -> None:
    for pool in list(_all):
        pool.begin_as_child()


def _close_all() -> None:
    for pool in list(_all):
        pool.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
