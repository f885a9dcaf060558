"""Work that no signal interrupts: it runs in a thread of its own, while the caller waits for it.

Python runs signal handlers in the main thread, at whatever it is doing. What a handler raises (KeyboardInterrupt, a
time limit's TimeoutError) may do harm there: within a pass that TVM's C++ calls it becomes TVM's RuntimeError; within
TVM's import it leaves a half-imported TVM that cannot be imported again; and while a lock is taken it leaves the lock
unreleased. A thread that only waits has no such places. What a handler raises reaches the caller at once, and the work
continues to its end. A later request for the same kernel waits for the lock file that the work holds, and then finds
the kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")
_LATEST = 0.05
"""Seconds after which a signal is heeded at the latest that comes between Python's last look and the system's wait."""
_STACK = 16 << 20  # bytes: a compiler's recursion is deep, and the usual size may be small


def uninterrupted(work: Callable[[], T]) -> T:
    """What `work` returns or raises; or what a signal's handler raises meanwhile.

    At its end a process waits for work that has been left. The caller does the work itself where there is no further
    thread to be had.
    """
    if isinstance(threading.current_thread(), _Worker):
        return work()  # no signal comes here, and locks that this thread holds are not waited for
    worker = _Worker(work)
    try:
        _start(worker)
        while not worker.answer.done():
            wait([worker.answer], _LATEST)  # not by Thread.join: interrupted, it takes the thread for ended
        return worker.answer.result()
    except RuntimeError as reason:
        if worker.ident is not None or "new thread" not in str(reason):
            raise  # the work's own, or a handler's
    finally:
        del worker  # an error that refers to this frame would keep it
    return work()  # the limit of threads is reached, or the interpreter is about to end


def _start(worker: threading.Thread) -> None:
    before = threading.stack_size(_STACK)
    try:
        worker.start()
    finally:
        threading.stack_size(before)


class _Worker(threading.Thread, Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(name="tvmconvgrad-build", daemon=False)
        self.work = work
        self.answer: Future[T] = Future()

    def run(self) -> None:
        try:
            result = self.work()
        except BaseException as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(result)
