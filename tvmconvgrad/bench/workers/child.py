"""The parent's side of a worker process, which stands still whenever it is not asked something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from tvmconvgrad.bench.job import Refused
from tvmconvgrad.bench.variants import Variant

# each waits for work in the way that is quickest for itself: nobody else needs its CPUs meanwhile
_ENVIRONMENT = {"OMP_WAIT_POLICY": "ACTIVE"}


class WorkerFailed(RuntimeError):
    """An implementation failed at a job that it had not refused; `trace` is the worker's traceback."""

    trace = ""


class WorkerEnded(WorkerFailed):
    """The worker's process has ended by itself."""


class Child:
    """A worker process of one variant, with one thread for each of its CPUs. Use it as a context.

    Between its answers it is stopped (SIGSTOP): threads that wait actively then take no other worker's time.
    """

    def __init__(self, variant: Variant, cpus: Sequence[int]) -> None:
        self.variant = variant
        self.versions: dict[str, str] = {}
        self._cpus = list(cpus)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._start()

    def _start(self) -> None:
        threads = str(len(self._cpus))
        environment = {**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tvmconvgrad.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=self.variant.checkout,  # where Python looks before it looks at what is installed
            text=True,
        )
        setup = {"variant": self.variant.to_dict(), "threads": len(self._cpus), "cpus": self._cpus}
        try:
            self.versions = self.ask(setup)["versions"]
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Begin anew after WorkerEnded."""
        self._end()
        self._errors.truncate(0)
        self._start()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises Refused, WorkerFailed or WorkerEnded."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.send_signal(signal.SIGCONT)
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerEnded(f"{self.variant.label}: {self._last_words()}")
        self._stop()
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            return answer
        if answer["refused"]:
            raise Refused(answer["why"])
        failure = WorkerFailed(f"{self.variant.label}: {answer['why']}")
        failure.trace = answer["trace"]
        raise failure

    def _stop(self) -> None:
        """Stop the process and wait until all its threads stand still: until then they take the next one's CPUs."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """End the process."""
        self._end()
        self._errors.close()

    def _end(self) -> None:
        self._process.kill()  # also where it is stopped
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # of what it was told and did not read
                    continue

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _last_words(self) -> str:
        """Why the process has ended, as far as it has said so."""
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        told = next((line for line in lines if "what()" in line), lines[-1] if lines else "")
        return f"the process ended with {code}{': ' if told else ''}{told}"
