"""Bundles in use: where the normal interface's operators find their kernels first, and whether others are built."""

from __future__ import annotations

import importlib.util
import os
import sys

from tvmconvgrad.bundles.errors import MissingKernel
from tvmconvgrad.bundles.load import Bundle, load
from tvmconvgrad.common import process
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import nearest, parse_bool, parse_path
from tvmconvgrad.workers.environment import NAMED, named

VARIABLE = "TVMCONVGRAD_BUILD"
_WORDS = {"": True, "allowed": True, "never": False}

generation = 0
"""Grows with every change: a kernel that was found before may not be the one to be found now."""
_used: tuple[Bundle, ...] = ()
_allowed: bool | None = None


def use(bundle: Bundle | str | os.PathLike[str], *, build: bool | None = None) -> Bundle:
    """Let all operators find their kernels in a bundle first: in the one that came into use last before the others.

    A call or `compile` without a target then takes the bundle's code for this CPU, whatever its target is called; with
    a target, only that one's. With `build=False` kernels that no bundle has are neither built nor taken from the cache:
    asking for one raises MissingKernel, which tells how to build it. `build=True` allows it again; without either, the
    environment variable TVMCONVGRAD_BUILD decides ("never" or "allowed"). Raises what `load` raises.
    """
    global generation, _used, _allowed
    allowed = None if build is None else parse_bool("build", build)
    found = bundle if isinstance(bundle, Bundle) else load(parse_path("bundle", bundle))
    with process.lock:
        _used = (found, *(other for other in _used if other is not found))
        _allowed = _allowed if allowed is None else allowed
        generation += 1
    return found


@process.forgets
def forget() -> None:
    """As if no bundle had come into use."""
    global generation, _used, _allowed
    with process.lock:
        _used, _allowed = (), None
        generation += 1


def find(problem: Problem, target: Target | None, schedule: str | None, gpu: str | None = None) -> Kernel | None:
    """The kernel of a problem in a bundle in use; `gpu` is the architecture of the GPU that it is to run on."""
    kernels = (bundle.find(problem, target, schedule, gpu) for bundle in _used)
    return next((kernel for kernel in kernels if kernel is not None), None)


def check_building(problem: Problem, target: Target | None) -> None:
    """Raise MissingKernel where a kernel that no bundle has must not or cannot be built."""
    reason = _obstacle()
    if reason is not None:
        with process.lock:
            from tvmconvgrad.bundles.missing import how_to_build
        targets = (
            [str(target)] if target else [entry.target for bundle in _used[:1] for entry in bundle.manifest.targets]
        )
        where = ", ".join(str(bundle.folder) for bundle in _used) or "none"
        about = f"{problem}: in no bundle in use ({where}), and {reason}"
        raise MissingKernel(f"{about}.\n{how_to_build(problem, targets)}")


def is_building_allowed() -> bool:
    """What `use` was told last, or the environment variable says. ValueError where that has another word."""
    if _allowed is not None:
        return _allowed
    text = os.environ.get(VARIABLE, "").strip()
    if text not in _WORDS:
        raise ValueError(f"{VARIABLE}: got {text!r}{nearest(text, _WORDS)}, expected never or allowed")
    return _WORDS[text]


def _obstacle() -> str | None:
    """Why no kernel is built here; None where nothing is against it."""
    if not is_building_allowed():
        who = f"{VARIABLE}={os.environ[VARIABLE].strip()}" if _allowed is None else "use(..., build=False)"
        return f"building is forbidden by {who}"
    if named() is None and "tvm" not in sys.modules and importlib.util.find_spec("tvm") is None:
        return f"apache-tvm is not installed, which would build it, and {NAMED} names no interpreter that has it"
    return None
