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
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]
_LOOKS = 0.5  # seconds between two looks for the parent


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests by what they want `do`ne, each with "ok" and, where that is false, "why"."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(_answer(handlers, json.loads(line))) + "\n")
        answers.flush()


def _answer(handlers: Mapping[str, Handler], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": True, **handlers[request["do"]](request)}
    except Exception as error:  # whatever a candidate makes of the compiler: the parent reports it
        traceback.print_exc()
        return {"ok": False, "why": f"{type(error).__name__}: {error}"}


def _leave_with(parent: int) -> None:
    """End this process, whatever it does, when its parent has ended in whatever way."""
    while os.getppid() == parent:
        time.sleep(_LOOKS)
    os._exit(1)
