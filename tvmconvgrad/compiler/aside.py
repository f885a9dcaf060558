"""Work that no signal interrupts: in a thread of its own, while the caller waits for it.

Python runs signal handlers in the main thread, wherever that is. Within a pass that TVM's C++ calls, what a handler
raises (KeyboardInterrupt, a time limit's TimeoutError) becomes TVM's RuntimeError; within TVM's import it leaves half
of a TVM that cannot be imported again; while a lock is taken it leaves one that nobody releases. A thread that only
waits has none of these places: what a handler raises reaches the caller at once, and the work goes on to its end.
Whoever asks for the same kernel again waits for the lock file that the work holds, and finds the kernel.
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


def aside(work: Callable[[], T]) -> T:
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
