"""The parent's side of worker processes: they live on from request to request, and are replaced when they fail."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Request = dict[str, Any]
Answer = dict[str, Any]


class TrialFailed(RuntimeError):
    """A candidate could not be built or run, or its result is wrong: the text says how."""


class TimeIsUp(TrialFailed):
    """The pool takes no requests any more."""


class Worker:
    """One process: python -m MODULE. It starts with its first request if not before, and anew after one that ended it.

    `prepare` is what a new process is asked first. Where a worker is not `sturdy`, a new process takes the place of one
    in which something was raised, too: nobody knows what it has left behind.
    """

    def __init__(self, module: str, prepare: Request | None = None, sturdy: bool = False) -> None:
        self._module, self.prepare, self._sturdy = module, prepare, sturdy
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer; TrialFailed where there is none in time, the process ends, or something is raised in it.

        A new process is prepared before, in the same time again.
        """
        if self._process is None:
            self.start()
            if self.prepare is not None:
                self._exchange(self.prepare, timeout)
        return self._exchange(request, timeout)

    def start(self) -> None:
        """Start the process, which imports what it needs meanwhile."""
        self._errors.seek(0)
        self._errors.truncate(0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def stop(self) -> None:
        """End the process; the next request starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._errors.close()

    def _exchange(self, request: Request, timeout: float) -> Answer:
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with suppress(BrokenPipeError):  # that it has ended is found below
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        if not select.select([stdout], [], [], timeout)[0]:
            self.stop()
            raise TrialFailed("it took too long")
        line = stdout.readline()
        if not line.endswith("\n"):
            raise TrialFailed(self._last_words())
        answer: Answer = json.loads(line)
        if not answer["ok"]:
            if not self._sturdy:
                self.stop()
            raise TrialFailed(answer["why"])
        return answer

    def _last_words(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self.stop()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the process ended with {code}{f': {lines[-1]}' if lines else ''}"


class Pool:
    """Several workers of one kind, each with one request at a time. Use it as a context: they start with that."""

    def __init__(self, module: str, size: int) -> None:
        self.workers = [Worker(module, sturdy=True) for _ in range(size)]
        self._threads = ThreadPoolExecutor(size)
        self._closed = False
        self.until = float("inf")
        """When it takes no requests any more, on time.monotonic's clock."""
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)

    @property
    def over(self) -> bool:
        """Whether it takes no requests any more."""
        return time.monotonic() >= self.until

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer of whoever is idle first, as of Worker.ask. Threads may ask at the same time.

        TimeIsUp after `until`, for what is not under way. RuntimeError after `close`: a function under way in `map`
        would start workers again.
        """
        if self._closed:
            raise RuntimeError("the pool of workers is closed")
        worker = self._idle.get()
        try:
            if self.over:
                raise TimeIsUp("time is up")
            return worker.ask(request, timeout)
        finally:
            self._idle.put(worker)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """What a function that asks once at a time has for each item, in order: as many at a time as there are workers.

        The function must not call `map` itself.
        """
        return list(self._threads.map(function, items))

    def close(self) -> None:
        """End all."""
        self._closed = True
        for worker in self.workers:
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Pool:
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()
