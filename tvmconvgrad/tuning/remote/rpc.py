"""Measuring on other machines, through TVM's RPC tracker. Importing this imports TVM.

Each server that the tracker has under the key measures one candidate at a time. They should be equal machines: their
times are compared. A server that is lost costs its trial; the others go on.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tvm import rpc

from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.remote.rpc_server import FUNCTION
from tvmconvgrad.tuning.workers.measure import ServersGone, prepare_request
from tvmconvgrad.tuning.workers.pool import TrialFailed

_PATIENCE = 10.0  # seconds for a tracker or a free server to answer


class Tracker(NamedTuple):
    """Where servers are found, and under which key."""

    host: str
    port: int
    key: str

    def free(self) -> int:
        """How many servers wait for a session. ServersGone where the tracker does not answer."""
        try:  # TVM would try for minutes
            socket.create_connection((self.host, self.port), _PATIENCE).close()
        except OSError as reason:
            raise ServersGone(f"there is no tracker: {reason}") from reason
        state = within(_PATIENCE, lambda: rpc.connect_tracker(self.host, self.port).summary())
        return int(state["queue_info"].get(self.key, {"free": 0})["free"])

    def session(self) -> Any:
        """A session on a free server. ServersGone where there is none."""
        if not self.free():
            raise ServersGone(f"the tracker {self.host}:{self.port} has no free server with the key {self.key!r}")
        return within(_PATIENCE, lambda: rpc.connect_tracker(self.host, self.port).request(self.key))


class Remote:
    """A session on one server, begun with its first request."""

    def __init__(self, tracker: Tracker) -> None:
        self._session = tracker.session()
        self._ask = self._session.get_function(FUNCTION)
        self._prepared: dict[str, Any] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request whose libraries are there. TrialFailed; any other error is the connection's."""
        answer: dict[str, Any] = json.loads(str(self._ask(json.dumps(request))))
        if not answer["ok"]:
            raise TrialFailed(answer["why"])
        return answer

    def prepare(self, request: dict[str, Any]) -> None:
        """Take up a task, unless it is the last one that was taken up."""
        if self._prepared is not request:
            self.ask({**request, "library": self.upload(request["library"])})
            self._prepared = request

    def upload(self, path: str) -> str:
        """Send a library; returns its name over there."""
        name = Path(path).name
        self._session.upload(path, name)
        return name

    def remove(self, name: str) -> None:
        """Remove what was sent."""
        self._session.remove(name)


class RpcMeasurer:
    """All servers of a tracker's key."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._task: dict[str, Any] = {}
        self._idle: queue.SimpleQueue[Remote] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        for _ in range(max(tracker.free(), 1)):
            self._idle.put(Remote(tracker))
            self._count += 1
        self.parallel = self._count

    def about(self) -> dict[str, Any]:
        """CPU, target and threads of a server."""
        return self._with_server(lambda remote: remote.ask({"do": "about"}))

    def prepare(self, task: Task, library: str) -> None:
        """Servers take it up with their next candidate."""
        self._task = prepare_request(task, library)

    def measure(self, library: str, limit: float) -> list[float]:
        """On any server."""
        answer = self._run([library], lambda names: {"do": "measure", "library": names[0], "limit": limit})
        return list(answer["seconds"])

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        """All on the same server."""
        answer = self._run(libraries, lambda names: {"do": "compare", "libraries": names, "rounds": rounds})
        return list(answer["seconds"])

    def close(self) -> None:
        """End the sessions."""
        while not self._idle.empty():
            self._idle.get()

    def _run(self, libraries: Sequence[str], request: Any) -> dict[str, Any]:
        def work(remote: Remote) -> dict[str, Any]:
            remote.prepare(self._task)
            names = [remote.upload(path) for path in libraries]
            answer = remote.ask(request(names))
            for name in names:
                remote.remove(name)
            return answer

        return self._with_server(work)

    def _with_server(self, work: Any) -> dict[str, Any]:
        remote = self._take()
        try:
            answer: dict[str, Any] = work(remote)
        except TrialFailed:
            self._idle.put(remote)
            raise
        except Exception as reason:  # whatever TVM raises when a connection breaks
            with self._lock:
                self._count -= 1
            raise TrialFailed(f"the connection to a server is lost: {str(reason).strip().splitlines()[-1]}") from reason
        self._idle.put(remote)
        return answer

    def _take(self) -> Remote:
        """A server that is idle, or will be; a new session where all were lost."""
        with self._lock:
            if self._count == 0:
                self._idle.put(Remote(self._tracker))
                self._count = 1
        return self._idle.get()


def within(seconds: float, work: Any) -> Any:
    """What `work` returns. ServersGone where it takes longer, or fails."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((True, work()))
        except Exception as reason:
            found.append((False, reason))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise ServersGone(f"no answer within {seconds:g} s")
    good, value = found[0]
    if not good:
        raise ServersGone(str(value).strip().splitlines()[-1]) from value
    return value
