"""Compiling in this process, as bundles do. Kernels are compiled by workers (service.py).

TVM and LLVM have locks and half made things, and Python half imported modules. A thread that a fork leaves behind in
the middle of a compilation would have to finish them, and its child would wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvmconvgrad import process

_compiler = process.Section()
_LOST = (
    "this process was forked while another thread was compiling, and cannot compile itself: start new processes by the "
    "method 'spawn', or compile before the fork"
)


@contextmanager
def compiling() -> Iterator[None]:
    """A block that uses the compiler in this process. RuntimeError in a child that cannot."""
    if _compiler.is_lost():
        raise RuntimeError(_LOST)
    with _compiler:
        yield
