"""Compiling in a forked child whose parent was compiling on another thread: in a process of its own.

TVM and LLVM have locks and half made things, and Python modules half imported, that such a thread would have to
finish. It is not there in the child, which would wait for ever.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvmconvgrad import process

Made = tuple[bytes, dict[str, Any]]
_compiler = process.Section()
_LOST = (
    "this process was forked while another thread was compiling, and cannot compile itself: start new processes by the "
    "method 'spawn', or compile before the fork"
)
_PROGRAM = f"from {__name__} import answer; answer()"


def compile_by(compiler: str, *wanted: Any) -> Made:
    """What `compile_problem` of a module returns for these arguments, or raises. It imports TVM: seconds."""
    if _compiler.is_lost():
        return _compile_apart(compiler, wanted)
    with compiling():
        made: Made = importlib.import_module(compiler).compile_problem(*wanted)
        return made


@contextmanager
def compiling() -> Iterator[None]:
    """A block that uses the compiler in this process. RuntimeError in a child that cannot."""
    if _compiler.is_lost():
        raise RuntimeError(_LOST)
    with _compiler:
        yield


def _compile_apart(compiler: str, wanted: tuple[Any, ...]) -> Made:
    if not sys.executable:
        raise RuntimeError(_LOST)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=pickle.dumps((compiler, wanted)),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the process that was to compile a kernel ended with status {done.returncode}")
    made, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    result: Made = made
    return result


def answer() -> None:
    """What that process does: it reads what is wanted from standard input, and writes what came of it to the output."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what libraries print is no answer
        compiler, wanted = pickle.load(sys.stdin.buffer)
        output.write(_outcome(compiler, wanted))


def _outcome(compiler: str, wanted: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((compile_by(compiler, *wanted), None))
    except Exception as error:  # whatever it is: the parent raises it
        try:
            pickle.loads(outcome := pickle.dumps((None, error)))
        except Exception:  # some exceptions cannot be made from their pickle
            return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
        return outcome
