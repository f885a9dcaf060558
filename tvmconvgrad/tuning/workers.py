"""The parent's side of worker processes: they live on from request to request, and are replaced when they fail."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

Request = dict[str, Any]
Answer = dict[str, Any]


class TrialFailed(RuntimeError):
    """A candidate could not be built or run, or its result is wrong: the text says how."""


class Worker:
    """One process: python -m MODULE. It starts with its first request if not before, and anew after one that ended it.

    `prepare` is what a new process is asked first. Where a worker is not `sturdy`, a new process takes the place of one
    in which something was raised, too: nobody knows what it has left behind.
    """

    def __init__(self, module: str, prepare: Request | None = None, sturdy: bool = False) -> None:
        self._module, self.prepare, self._sturdy = module, prepare, sturdy
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._deadline = 0.0

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer; TrialFailed where there is none in time, the process ends, or something is raised in it."""
        self.send(request, timeout)
        return self.receive()

    def send(self, request: Request, timeout: float) -> None:
        """Begin a request. A new process is prepared before, in the same time again."""
        if self._process is None:
            self.start()
            if self.prepare is not None:
                self._tell(self.prepare, timeout)
                self.receive()
        self._tell(request, timeout)

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

    def fileno(self) -> int:
        """Of the stream that gets readable when there is an answer, or none to come."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def seconds_left(self) -> float:
        """Until the request under way has taken too long."""
        return max(self._deadline - time.monotonic(), 0.0)

    def receive(self) -> Answer:
        """The answer to what was sent."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self], [], [], self.seconds_left)[0]:
            self.stop()
            raise TrialFailed("it took too long")
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise TrialFailed(self._last_words())
        answer: Answer = json.loads(line)
        if not answer["ok"]:
            if not self._sturdy:
                self.stop()
            raise TrialFailed(answer["why"])
        return answer

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

    def _tell(self, request: Request, timeout: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._deadline = time.monotonic() + timeout
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # receive() finds that it has ended
            return

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

    def map(self, requests: Sequence[Request], timeout: float) -> list[Answer | TrialFailed]:
        """The answers, or why there is none, in order."""
        found: dict[int, Answer | TrialFailed] = {}
        waiting = deque(enumerate(requests))
        idle, busy = deque(self.workers), dict[Worker, int]()
        while waiting or busy:
            while waiting and idle:
                worker, (place, request) = idle.popleft(), waiting.popleft()
                worker.send(request, timeout)
                busy[worker] = place
            for worker in _ready(busy):
                found[busy.pop(worker)] = _caught(worker.receive)
                idle.append(worker)
        return [found[place] for place in range(len(requests))]

    def close(self) -> None:
        """End all."""
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> Pool:
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _ready(busy: dict[Worker, int]) -> Iterator[Worker]:
    """Those that have answered, or will not any more."""
    readable, _, _ = select.select(list(busy), [], [], min(worker.seconds_left for worker in busy))
    yield from [worker for worker in busy if worker in readable or not worker.seconds_left]


def _caught(ask: Callable[[], Answer]) -> Answer | TrialFailed:
    try:
        return ask()
    except TrialFailed as reason:
        return reason
