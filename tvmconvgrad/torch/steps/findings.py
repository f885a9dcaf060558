"""The times that earlier runs have measured, in a file of JSON lines beside the user's tuning logs.

Each line has the times of one part of a layer. If there are several, the last one counts. A line holds for one GPU,
or one CPU and number of threads, for one version of PyTorch, and for one text of the kernels' sources: newer kernels
may be faster. If the file cannot be read or written, a warning says so, and each run measures its layers again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from tvmconvgrad.cache import sources
from tvmconvgrad.cache.folder import CacheFolderError
from tvmconvgrad.common import process
from tvmconvgrad.common.warnings import cause, say
from tvmconvgrad.files.regular_file import read_regular
from tvmconvgrad.machines.backends import BACKENDS
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.logs import TuningWarning, user_folder
from tvmconvgrad.spec import Problem
from tvmconvgrad.torch.devices import Device
from tvmconvgrad.torch.steps.comparison import Comparison

FILE = "torch.jsonl"
_MOST = 1 << 26
"""Largest size of the file that is read, in bytes."""


def comparison(problem: Problem, device: Device, target: Target | None, copies: Sequence[bool]) -> Comparison:
    """A new comparison for a problem, decided already if an earlier run has measured it.

    `copies` says which of the inputs are copied first: the copies are part of the time.
    """
    key = _key(problem, device, target, copies)
    found = load().get(key)
    if found is None:
        return Comparison(decided=lambda comparison: _keep(key, comparison))
    return Comparison(is_ours=found[0] <= found[1], known=found)


def forget() -> None:
    """Read the file again when it is needed next."""
    load.cache_clear()


process.forgets(forget)


def _key(problem: Problem, device: Device, target: Target | None, copies: Sequence[bool]) -> str:
    of_device = device.facts(target)
    facts = {
        "problem": json.loads(problem.key),
        **of_device,
        "copies": copies,
        "torch": torch.__version__,
        "sources": sources.digest(*BACKENDS[of_device["target"].split()[0]].sources),
    }
    return json.dumps(facts, sort_keys=True)


@functools.lru_cache(maxsize=1)
def load() -> dict[str, tuple[float, float]]:
    """All findings: milliseconds of ours and PyTorch's, by `_key`. Warns if there is a file that cannot be read."""
    found = {}
    for line in _lines():
        with suppress(Exception):  # a line that is cut off, or no finding; the parser has errors of many types
            one = json.loads(line)
            found[json.dumps(one["of"], sort_keys=True)] = float(one["ours_ms"]), float(one["theirs_ms"])
    return found


def _lines() -> list[str]:
    try:
        return read_regular(_path(), _MOST).decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as reason:
        say(f"what was found out about PyTorch's kernels is not read: {cause(reason)}", TuningWarning)
        return []


def _keep(key: str, comparison: Comparison) -> None:
    ours, theirs = comparison.milliseconds
    line = json.dumps({"of": json.loads(key), "ours_ms": ours, "theirs_ms": theirs}) + "\n"
    try:
        path = _path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line.encode())  # in one write, so that lines of several processes do not mix
    except OSError as reason:
        say(f"what was found out about PyTorch's kernels is not kept: {cause(reason)}", TuningWarning)


def _path() -> Path:
    try:
        return user_folder() / FILE
    except CacheFolderError as reason:
        raise FileNotFoundError(str(reason)) from None
