"""The parent's side of one worker process: it lives on from request to request, and is replaced when it fails."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tvmconvgrad.common import process as shared
from tvmconvgrad.common import programs
from tvmconvgrad.workers import folder as folders
from tvmconvgrad.workers.errors import RaisedInWorker, WorkerFailed

Request = dict[str, Any]
Answer = dict[str, Any]
_PROGRAM = (
    "import os, sys; os.nice({niceness}); sys.path[:] = {path}; "
    "import runpy; runpy.run_module({module!r}, None, '__main__', True)"
)
_OWN_PATH = "[place for place in sys.path if place]"
_CHUNK = 1 << 16
_ENDING = 5.0  # seconds between the end of a process' output and its own
# The parent's group would get its Ctrl-C. Before Python 3.11 workers leave it by themselves, a moment later.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {}
_all: weakref.WeakSet[Worker] = weakref.WeakSet()


def command(module: str, python: str | None, niceness: int = 0) -> tuple[list[str], dict[str, str]]:
    """What runs a module's program, and in which environment: where this process finds it, or another interpreter.

    `niceness` is what the program has above this process'.
    """
    environment = dict(os.environ)
    if python is not None:
        for name in ("PYTHONPATH", "PYTHONHOME"):  # they are for this interpreter
            environment.pop(name, None)
        return [python, "-c", _PROGRAM.format(path=_OWN_PATH, module=module, niceness=niceness)], environment
    if not sys.executable:
        raise RuntimeError("sys.executable names no Python interpreter, which a worker process needs")
    path = [os.path.abspath(place or os.curdir) for place in sys.path]
    return [sys.executable, "-c", _PROGRAM.format(path=path, module=module, niceness=niceness)], environment


class Worker:
    """One process that runs a module. It starts with its first request if not before, and anew after one that ended it.

    `prepare` is what a new process is asked first. Where a worker is not `sturdy`, a new process takes the place of one
    in which something was raised, too: nobody knows what it has left behind. `python` is another interpreter. One
    thread at a time may use it; `kill` and `retire` are for any.
    """

    def __init__(
        self, module: str, prepare: Request | None = None, sturdy: bool = False, python: str | None = None
    ) -> None:
        self._module, self.prepare, self._sturdy, self._python = module, prepare, sturdy, python
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None
        self._niceness = 0
        self._retired = False
        _all.add(self)

    @property
    def pid(self) -> int | None:
        """The process' number, where there is one."""
        return None if self._process is None else self._process.pid

    def ask(self, request: Request, timeout: float) -> Answer:
        """The answer; WorkerFailed where there is none in time, or the process ends; RaisedInWorker.

        A new process is prepared before, in the same time again. A request's "niceness" is above this process', and the
        worker is told the difference to its own. A process cannot become less nice, so a nicer one is replaced: once,
        who waits for a kernel also waits for a process that imports the compiler.
        """
        niceness = request.get("niceness", 0)
        if self._folder is not None and (folders.is_elsewhere(self._folder) or self._niceness > niceness):
            self.stop()
        if self._process is None:
            self.start(niceness)
            if self.prepare is not None:
                self._exchange(self.prepare, timeout)
        return self._exchange({**request, "niceness": niceness - self._niceness}, timeout)

    def start(self, niceness: int = 0) -> None:
        """Start the process, which imports what it needs meanwhile. OSError where it cannot be."""
        if self._retired:
            raise WorkerFailed("the process was ended with this one")
        self._niceness = niceness
        words, environment = command(self._module, self._python, niceness)
        self._folder = folders.make()
        try:
            # The lock: a child has no pipes of the process, or closes those that it finds (`forget`).
            with self._errors().open("wb") as errors, shared.lock:
                self._process = programs.start(
                    [*words, str(os.getpid()), self._folder],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**environment, "TMPDIR": self._folder},
                    **_OWN_GROUP,
                )
        except BaseException:
            self._remove_folder()
            raise
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        if self._retired:
            self.kill()

    def kill(self) -> None:
        """End the process and those that it has started; whoever waits for its answer is told."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):  # it has not got its group yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()

    def retire(self) -> None:
        """End the process for good, as `kill` does."""
        self._retired = True
        self.kill()

    def stop(self) -> None:
        """End the process; the next request starts another one."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            _close(process)
        self._remove_folder()

    close = stop

    def forget(self) -> None:
        """In a forked child: the process is the parent's. What was to be asked of it is asked of another one."""
        process, self._process, self._folder = self._process, None, None
        if process is not None:
            process.returncode = 0  # whose end is the parent's to see
            _close(process)

    def _exchange(self, request: Request, timeout: float) -> Answer:
        process, end = self._process, time.monotonic() + timeout
        assert process is not None
        try:
            self._send(process.stdin, json.dumps(request).encode() + b"\n", end)
            line = self._receive(process.stdout, end)
        except TimeoutError:
            self.stop()
            raise WorkerFailed("it took too long") from None
        except BaseException:  # the next answer would be this request's
            self.stop()
            raise
        if not line.endswith(b"\n"):
            raise WorkerFailed(self._last_words())
        answer: Answer = json.loads(line)
        if not answer["ok"]:
            if not self._sturdy:
                self.stop()
            raise RaisedInWorker(answer["raised"])
        return answer

    def _send(self, stream: IO[bytes] | None, data: bytes, end: float) -> None:
        assert stream is not None
        view = memoryview(data)
        while view:
            _await(stream, select.POLLOUT, end)
            try:
                view = view[os.write(stream.fileno(), view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:  # that it has ended is found when it does not answer
                return

    def _receive(self, stream: IO[bytes] | None, end: float) -> bytes:
        """A line; without its end where the process has ended."""
        assert stream is not None
        parts: list[bytes] = []
        while not (parts and parts[-1].endswith(b"\n")):
            _await(stream, select.POLLIN, end)
            part = os.read(stream.fileno(), _CHUNK)
            if not part:
                break
            parts.append(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        assert self._process is not None
        _await_end(self._process.pid)
        self.kill()  # its group, too: what it has started would go on
        code = self._process.wait()
        lines: list[str] = []
        with suppress(OSError):
            lines = self._errors().read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        self.stop()
        return f"the process ended with {code}{f': {said[-1]}' if said else ''}"

    def _errors(self) -> Path:
        assert self._folder is not None
        return Path(self._folder, "stderr")

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folders.remove(folder)


def _await(stream: IO[bytes], event: int, end: float) -> None:
    """Until a pipe can be read or written; TimeoutError."""
    poll = select.poll()
    poll.register(stream.fileno(), event)
    if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError


def _await_end(pid: int) -> None:
    """Until a process has ended, unless that takes long: it may have closed its output alone."""
    end = time.monotonic() + _ENDING
    with suppress(ChildProcessError):  # another thread that killed it has seen its end
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < end:
            time.sleep(0.005)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _begin_as_child() -> None:
    for worker in list(_all):
        worker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_as_child)
