"""The child's side of a worker process: JSON lines in, JSON lines out, until the parent is gone."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tvmconvgrad.workers import folder as folders
from tvmconvgrad.workers.errors import describe

Handler = Callable[[dict[str, Any]], dict[str, Any]]
_LOOKS = 0.5  # seconds between two looks for the parent


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests by what they want `do`ne, each with "ok" and, where that is false, what was raised.

    The program's arguments are the parent's process number and the folder for temporary files, which goes with it.
    """
    parent, folder = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with suppress(PermissionError):  # it leads a session
        os.setpgid(0, 0)  # with the programs that it calls
    folders.take(folder)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_leave_with, args=(parent, folder), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        with suppress(BrokenPipeError):
            answers.write(json.dumps(_answer(handlers, json.loads(line))) + "\n")
            answers.flush()
    folders.remove(folder)


def _answer(handlers: Mapping[str, Handler], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **handlers[request["do"]](request)}
    except Exception as error:  # whatever a candidate makes of the compiler: the parent reports it
        traceback.print_exc()
        return {"ok": False, "raised": describe(error)}


def _leave_with(parent: int, folder: str) -> None:
    """End this process and those that it has started, whatever they do, when its parent has ended in whatever way."""
    while os.getppid() == parent:
        time.sleep(_LOOKS)
    folders.remove(folder)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
