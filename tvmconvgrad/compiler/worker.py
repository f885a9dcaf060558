"""A worker that compiles kernels: python -m tvmconvgrad.compiler.worker. Who asks it is service.py.

{"do": "compile", "problem": ..., "target": text, "schedule": name or null, "choice": ... or null,
 "description": the kernel's in the cache, "symbol": of an object file for a bundle, or null,
 "environment": variables, "folder": path, "niceness": what this process' own lacks}
{"do": "check", "targets": [text], "environment": ..., "folder": ...}
"""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tvmconvgrad.common.errors import MissingCompiler
from tvmconvgrad.compiler.description import describe
from tvmconvgrad.compiler.import_tvm import import_tvm
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.spec import Problem
from tvmconvgrad.version import __version__
from tvmconvgrad.workers.environment import NAMED
from tvmconvgrad.workers.serving import serve

_STACK = 16 << 20  # bytes: a compiler's recursion is deep, and a thread's usual size may be small
_OURS = ("TMPDIR",)
"""Variables that are not the caller's."""


def compile_for(request: dict[str, Any]) -> dict[str, Any]:
    """The kernel's library, or its object file, and facts."""
    if not request["niceness"]:
        return _compiled(request)
    # A thread's priority is its own here, and that of the programs that it starts. The main thread keeps the process':
    # somebody may wait for the next kernel.
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(request["niceness"],)) as thread:
        return thread.submit(_compiled, request).result()


def _compiled(request: dict[str, Any]) -> dict[str, Any]:
    problem, target, schedule = (
        Problem.from_dict(request["problem"]),
        parse_target(request["target"]),
        request["schedule"],
    )
    choice = None if request["choice"] is None else Choice.of(**request["choice"])
    _check(request["description"], describe(problem, target, schedule, choice))
    _take_up(request["environment"], request["folder"])
    compiler = target.backend.get("compiler")
    if request["symbol"] is None:
        code, facts = compiler.compile_problem(problem, target, schedule, choice)
    else:
        code, facts = compiler.compile_object(problem, target, request["symbol"], choice)
    return {"code": b64encode(code).decode(), "facts": facts}


def check_targets(request: dict[str, Any]) -> dict[str, Any]:
    """What the code of CPUs may use of them. ValueError for one that LLVM does not know."""
    from tvmconvgrad.compiler import llvm

    _take_up(request["environment"], request["folder"])
    targets = list(map(parse_target, request["targets"]))
    for target in targets:
        llvm.check_cpu(target)
    return {"requires": [sorted(llvm.required_features(target)) for target in targets]}


def _check(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    """MissingCompiler where a kernel that is built here would not be the one that the caller wants."""
    for name in wanted:
        if name == "choice" or wanted[name] == found.get(name):
            continue
        here, there = f"{name} {found.get(name)}", f"has {wanted[name]}"
        if name == "sources":
            here, there = f"another text of tvmconvgrad {__version__}", "has not"
        raise MissingCompiler(
            f"the process that compiles has {here}, and its caller {there}: install the same in both "
            "environments; if a package was changed since this program began, begin anew"
        )


def _take_up(environment: Mapping[str, str], folder: str) -> None:
    """The caller's variables, which name its C compiler, and its folder."""
    kept = {name: os.environ[name] for name in _OURS if name in os.environ}
    os.environ.clear()
    os.environ.update({**environment, **kept})
    os.environ.pop(NAMED, None)
    with suppress(OSError):
        os.chdir(folder)


def main() -> None:
    """Answer until the parent is gone."""
    os.environ.pop(NAMED, None)  # this is the one
    threading.stack_size(_STACK)
    import_tvm()
    serve({"compile": compile_for, "check": check_targets})


if __name__ == "__main__":
    main()
