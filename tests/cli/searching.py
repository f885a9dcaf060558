"""Searches in processes of their own that begin at once: forked from one that has imported, in seconds, all they take.

Their batches and populations are small, so that trials follow one another from the first second on.
"""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.context import ForkServerProcess

_IMPORTED = ["tvmconvgrad.tuning.session", "tvmconvgrad.compiler.llvm", "xgboost"]


def start(seed: int, *words: object) -> ForkServerProcess:
    """tvmconvgrad tune, with these words, and random candidates of a seed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=_tune, args=[seed, *map(str, words)])
    process.start()
    return process


def _tune(seed: int, *words: str) -> None:
    from tvmconvgrad.cli import main
    from tvmconvgrad.tuning import session
    from tvmconvgrad.tuning.search import search, strategy

    search.BATCH = 4
    strategy.POPULATION, strategy.MEASURED, strategy.NEAR, strategy.GENERATIONS = 12, 4, 4, 1
    session.Decisions = partial(session.Decisions, seed=seed)
    main(["tune", *words])
