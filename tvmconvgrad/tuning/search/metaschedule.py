"""TVM's MetaSchedule, without what takes half a minute to import. Importing this imports TVM.

`TuneContext` imports all of TVM's tensor intrinsics, 248 functions in TVMScript, which no program of ours uses. While a
context is made, an empty module stands in their place.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
from tvm.s_tir import meta_schedule

_INTRINSICS = "tvm.s_tir.tensor_intrin"
_LOGGERS = ("tvm.s_tir.meta_schedule", "tvmconvgrad.tuning")

ArgInfo: Any = meta_schedule.arg_info.ArgInfo
MeasureCandidate: Any = meta_schedule.search_strategy.MeasureCandidate
TuneContext: Any = meta_schedule.TuneContext


@contextmanager
def without_intrinsics() -> Iterator[None]:
    """Within the block, importing TVM's tensor intrinsics imports an empty module, unless they are there already."""
    if _INTRINSICS in sys.modules:
        yield
        return
    sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS]


def make_context(module: tvm.IRModule, target: tvm.target.Target, **parts: Any) -> Any:
    """A TuneContext; `parts` are its search strategy, space generator and so on."""
    with without_intrinsics():
        return TuneContext(mod=module, target=target, logger=logging.getLogger(_LOGGERS[0]), **parts)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Within the block, what MetaSchedule and we have to say goes to a file, and nowhere else."""
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()
