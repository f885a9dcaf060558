"""A process that runs one variant: python -m tvmconvgrad.bench.worker. JSON lines in, JSON lines out.

The first line is the set-up: the variant, the threads and their CPUs. Then one request a line, until the end of input:

    {"do": "prepare", "job": ..., "files": {role: path}, "result": path}   convert, run once, write the result
    {"do": "time", "loops": n, "wake": true}                               run once, then the mean of n runs, in seconds

An answer has "ok"; where that is false, "refused" says that the implementation does not take the job, and "why".
Tensors are .npy files in the canonical layout: small integers come as int8, results go as f32, which holds all that
f16 and bf16 hold.

A variant with `checkout=FOLDER` starts this module of another state of the project, so its name and these lines stay.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import IO, Any

import numpy as np

from tvmconvgrad.bench.job import Job, Refused, Tensors
from tvmconvgrad.bench.variants import Variant
from tvmconvgrad.bench.workers.implementations import Prepared, start

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Worker:
    """Answers requests with one gradient at a time."""

    def __init__(self, variant: Variant, threads: int) -> None:
        self._prepare, self.versions = start(variant, threads)
        self._current: Prepared | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make ready what `time` runs; the answer has its facts, and how long a run took."""
        if self._current is not None:
            self._current.release()
            self._current = None
        job = job_from(request["job"])
        tensors: Tensors = {role: np.load(path) for role, path in request["files"].items()}
        current = self._current = self._prepare(job, tensors)
        current.run()
        with np.errstate(over="ignore"):
            np.save(request["result"], np.ascontiguousarray(current.result(), np.float32))
        begin = time.perf_counter()
        current.run()
        return {"facts": current.facts, "seconds": time.perf_counter() - begin}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds of a run, the mean of several; `wake` has one go before, to wake threads and warm caches."""
        assert self._current is not None
        run, loops = self._current.run, request["loops"]
        if request["wake"]:
            run()
        begin = time.perf_counter()
        for _ in range(loops):
            run()
        return {"seconds": (time.perf_counter() - begin) / loops}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, also where the implementation fails."""
        try:
            return {"ok": True, **(self.prepare(request) if request["do"] == "prepare" else self.time(request))}
        except Refused as reason:
            return {"ok": False, "refused": True, "why": str(reason)}
        except Exception as error:  # somebody else's code: the parent reports whatever it raises
            return failure(error)


def failure(error: Exception) -> dict[str, Any]:
    """The answer where something is raised."""
    why = f"{type(error).__name__}: {error}"
    return {"ok": False, "refused": False, "why": why, "trace": "".join(traceback.format_exception(error))}


def job_from(fields: dict[str, Any]) -> Job:
    """A job from JSON's types."""
    shapes = {role: tuple(shape) for role, shape in fields["shapes"].items()}
    return Job(**{**fields, "shapes": shapes})


def main() -> None:
    """Set this process up, then answer until the input ends."""
    # also when it is stopped, and cannot see that nobody writes to it any more
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    setup = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, setup["cpus"])  # before any library counts them
    try:
        worker = Worker(Variant(**setup["variant"]), setup["threads"])
    except Exception as error:
        _tell(answers, failure(error))
        return
    _tell(answers, {"ok": True, "versions": worker.versions})
    for line in sys.stdin:
        _tell(answers, worker.answer(json.loads(line)))


def _tell(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
