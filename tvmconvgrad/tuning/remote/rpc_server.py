"""TVM's RPC tracker and server, with what a search needs on the server's side. Importing this imports TVM.

A session measures in a worker process of its own, by the same code as a search on one machine: a candidate that crashes
ends that worker, where it would end TVM's server. Kernels run on our threads, not on TVM's.
"""

from __future__ import annotations

import json
import time
from typing import Any

import tvm_ffi
from tvm.rpc import server as tvm_server

from tvmconvgrad.tuning.search.tasks import this_machine
from tvmconvgrad.tuning.workers.measure import FINAL_SECONDS, RUN_SECONDS
from tvmconvgrad.tuning.workers.pool import TrialFailed, Worker

FUNCTION = "tvmconvgrad.tuning.ask"
_PORTS = 100  # that are tried, from the wanted one on
_workers: list[Worker] = []  # of this process, which is a session's


def ask(text: str) -> str:
    """Answer a request of measure_worker.py, or "about", as JSON; libraries are files that were uploaded."""
    request = json.loads(text)
    if request["do"] == "about":
        return json.dumps({"ok": True, **this_machine()})
    path = tvm_ffi.get_global_func("tvm.rpc.server.workpath")
    if "library" in request:
        request["library"] = str(path(request["library"]))
    if "libraries" in request:
        request["libraries"] = [str(path(name)) for name in request["libraries"]]
    return json.dumps(_measured(request))


def _measured(request: dict[str, Any]) -> dict[str, Any]:
    if not _workers:
        _workers.append(Worker("tvmconvgrad.tuning.workers.measure_worker"))
    (worker,) = _workers
    if request["do"] == "prepare":
        worker.stop()
        worker.prepare = request
        return {"ok": True}
    try:
        return worker.ask(request, RUN_SECONDS if request["do"] == "measure" else FINAL_SECONDS)
    except TrialFailed as reason:
        return {"ok": False, "why": str(reason)}


def start_tracker(host: str, port: int) -> Any:
    """TVM's tracker, in a thread of this process; `port` is the one that it has found free."""
    from tvm.rpc.tracker import PopenTrackerServerState  # imports tornado

    return PopenTrackerServerState(host, port, port + _PORTS)


def start_server(host: str, port: int, tracker: tuple[str, int], key: str) -> Any:
    """TVM's server, in a thread of this process, which tells the tracker that it is there."""
    tvm_ffi.register_global_func(FUNCTION, ask, override=True)
    return tvm_server.PopenRPCServerState(host, port, port + _PORTS, tracker_addr=tracker, key=key)


def wait_for(state: Any) -> None:
    """Until the thread of a tracker or a server ends, or Ctrl-C."""
    while state.thread.is_alive():
        time.sleep(0.2)
