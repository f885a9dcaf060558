"""A worker in the compiler's place: python -m tests.service.acting. It makes no kernel, and does what it is told.

Each request leaves a file in the folder that the variable ACTING_LOG names.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.records.choice import ChoiceRefused
from tvmconvgrad.workers.serving import serve

RAISED = {
    "value": ValueError("target: is wrong"),
    "linker": MissingLinker("install gcc"),
    "refused": ChoiceRefused("draws nothing"),
}


def compile_for(request: dict[str, Any]) -> dict[str, Any]:
    """What the description or the variable ACTING says: make something, sleep before that, crash, hang, raise."""
    log, about = Path(request["environment"]["ACTING_LOG"]), request["description"]
    act, word = [*about.get("act", request["environment"].get("ACTING", "make")).split(), ""][:2]
    marker = log / f"{about.get('number', 0)}"
    began_before = len(list(log.glob(f"{marker.name}-*")))
    Path(f"{marker}-{began_before}-{os.getpid()}").touch()
    tempfile.mkstemp()  # what a compiler leaves when it is killed
    if act == "sleep":
        time.sleep(float(word))
    if act == "crash" or (act == "stumble" and not began_before):
        os.kill(os.getpid(), signal.SIGSEGV)
    if act == "hang":
        time.sleep(1000)
    if act == "raise" and not (word == "refused" and request["choice"] is None):
        raise RAISED[word]
    facts = {"schedule": "none()", "workspace_bytes": 0, "requires": []}
    return {"code": b64encode(str(about).encode()).decode(), "facts": facts}


if __name__ == "__main__":
    serve({"compile": compile_for})
