"""Searches in processes of their own that begin at once: forked from one that has imported, in seconds, all they take.

Their batches and populations are small, so that trials follow one another from the first second on.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from functools import partial
from multiprocessing.context import ForkServerProcess
from typing import IO, Any

_IMPORTED = ["tvmconvgrad.tuning.session", "tvmconvgrad.compiling.compiler", "xgboost"]


def start(seed: int, *words: object) -> ForkServerProcess:
    """tvmconvgrad tune, with these words, and random candidates of a seed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=_tune, args=[seed, *map(str, words)])
    process.start()
    return process


def _tune(seed: int, *words: str) -> None:
    from tvmconvgrad.cli import main
    from tvmconvgrad.tuning import search, session, strategy, workers

    search.BATCH = 4
    strategy.POPULATION, strategy.MEASURED, strategy.NEAR, strategy.GENERATIONS = 12, 4, 4, 1
    session.Decisions = partial(session.Decisions, seed=seed)
    workers.Worker._start = _fork
    main(["tune", *words])


def _fork(worker: Any) -> None:
    worker._process = _Forked(worker._module, worker._errors)


class _Forked:
    """What a Worker needs of subprocess.Popen, for python -m MODULE: without exec, and so without its imports."""

    def __init__(self, module: str, errors: IO[bytes]) -> None:
        its_input, mine = os.pipe()
        other, its_output = os.pipe()
        self.stdin, self.stdout = os.fdopen(mine, "w"), os.fdopen(other)
        self._pid = os.fork()
        if self._pid == 0:
            for place, each in enumerate((its_input, its_output, errors.fileno())):
                os.dup2(each, place)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # of the pipes and the lock only the search has the other end
            sys.stdin = os.fdopen(0)
            try:
                runpy.run_module(module, run_name="__main__")
            finally:
                os._exit(0)
        os.close(its_input)
        os.close(its_output)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
