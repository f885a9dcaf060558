"""TVM in a process that does nothing but compile, which may leave out what costs time."""

from __future__ import annotations

import gc
import sys


def import_tvm() -> None:
    """Import it without PyTorch, and call a schedule's instructions without the comparison of types."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would import it, which takes as long as TVM itself
    from tvm.s_tir import Schedule

    for name, method in list(vars(Schedule).items()):  # a third of the time of scheduling
        if hasattr(method, "__wrapped__"):
            setattr(Schedule, name, method.__wrapped__)
    gc.freeze()  # what stays is not looked through for garbage again and again: a thirtieth of the time
