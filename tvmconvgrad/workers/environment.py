"""Where the compiler is: in this process' environment, or in that of another interpreter.

The other one is asked by compiler/about.py, which imports no TVM.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from tvmconvgrad.common import process
from tvmconvgrad.common.errors import MissingCompiler

NAMED = "TVMCONVGRAD_COMPILER"
"""The variable that names another interpreter."""
_PACKAGES = ("apache-tvm", "apache-tvm-ffi")
_SECONDS = 120.0
_ABOUT = "tvmconvgrad.compiler.about"


def named() -> str | None:
    """The interpreter that compiles, None for this one."""
    return os.environ.get(NAMED) or None


def versions() -> dict[str, str]:
    """Of the compiler's packages, found without importing them. MissingCompiler."""
    return own_versions() if named() is None else dict(_about(str(named()))["versions"])


def host_cpu() -> tuple[str, list[str], str]:
    """LLVM's name of this machine's CPU, the features that it implies, and the name of the generation that is the most
    like it, by the other interpreter. MissingCompiler."""
    name, features, closest = _about(str(named()))["cpu"]
    return name, features, closest


def own_versions() -> dict[str, str]:
    """Of the compiler's packages in this environment."""
    return {name: process.version(name) for name in _PACKAGES}


@functools.lru_cache(maxsize=16)
def _about(python: str) -> dict[str, Any]:
    with process.lock:
        from subprocess import TimeoutExpired

        from tvmconvgrad.common import programs
        from tvmconvgrad.version import __version__
        from tvmconvgrad.workers.worker import command

    words, environment = command(_ABOUT, python)
    environment.pop(NAMED)
    try:
        done = programs.finish(programs.start_quietly(words, env=environment), _SECONDS)
    except (OSError, TimeoutExpired) as reason:
        raise MissingCompiler(f"{NAMED}: {python} cannot be run: {reason}") from None
    lines = done.stdout.splitlines()
    try:
        about: dict[str, Any] | None = None if done.returncode or not lines else json.loads(lines[-1])
    except ValueError:
        about = None
    if about is None:
        said = (done.stderr.strip().splitlines() or lines or ["nothing"])[-1]
        raise MissingCompiler(
            f"{NAMED}: {python} does not have tvmconvgrad with its compiler, expected an environment where "
            f"tvmconvgrad {__version__} was installed; it ended with {done.returncode} and said: {said}"
        )
    if about["version"] != __version__:
        raise MissingCompiler(
            f"{NAMED}: {python} has tvmconvgrad {about['version']}, and this process has {__version__}: install the "
            "same version in both"
        )
    return about


def tvm_version() -> str:
    """Of the compiler, found without importing it. MissingCompiler."""
    return versions()["apache-tvm"]
