"""What the tests of the cache run in other processes: `cache_worker.py VERB ARGUMENTS`, answers in JSON."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tvmconvgrad.cache.store import CacheWarning, KernelCache


def description(number: int) -> dict[str, Any]:
    """What kernel `number` is built from."""
    return {"operator": "ConvolutionBackpropData", "shape": [8, number], "target": {"kind": "llvm"}}


def library(number: int, size: int = 20_000) -> bytes:
    """The bytes that kernel `number` must have, known without the cache."""
    return random.Random(number).randbytes(size)


def build(folder: str, log: str, numbers: str) -> None:
    """Get each kernel once a line arrives; every build leaves a file in `log`. Answers the wrong ones."""
    _say("ready")
    sys.stdin.readline()
    cache, wrong = KernelCache(Path(folder)), []
    for number in json.loads(numbers):
        entry = cache.load_or_build(description(number), partial(_built, Path(log), number))
        if entry.library != library(number) or entry.facts != {"number": number}:
            wrong.append(number)
    _say(wrong)


def _built(log: Path, number: int) -> tuple[bytes, dict[str, Any]]:
    (log / f"{number}-{os.getpid()}").touch(exist_ok=False)
    time.sleep(0.02)  # long enough for the others to arrive
    return library(number), {"number": number}


def hold(folder: str, number: str) -> None:
    """Begin to build a kernel and never end."""

    def never() -> tuple[bytes, dict[str, Any]]:
        _say("building")
        signal.pause()
        raise AssertionError

    KernelCache(Path(folder)).load_or_build(description(int(number)), never)


def kill_writers(folder: str, kills: str) -> None:
    """Kill `kills` processes while they store; answers what was found, wrong and damaged."""
    cache, chance = KernelCache(Path(folder)), random.Random(7)
    libraries = {number: library(number, 200_000) for number in range(3)}
    found, wrong = 0, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(int(kills)):
            child = os.fork()
            if child == 0:
                _store_for_ever(cache, libraries)
            time.sleep(chance.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            entries = {number: cache.load(description(number)) for number in libraries}
            found += sum(entry is not None for entry in entries.values())
            wrong += sum(entry is not None and entry.library != libraries[n] for n, entry in entries.items())
            cache.clear()
    damaged = [str(one.message) for one in caught if issubclass(one.category, CacheWarning)]
    _say({"found": found, "wrong": wrong, "damaged": damaged})


def _store_for_ever(cache: KernelCache, libraries: dict[int, bytes]) -> None:
    try:
        while True:
            for number, content in libraries.items():
                cache.store(description(number), content, {})
    finally:
        os._exit(1)


def hammer(folder: str, rounds: str) -> None:
    """Get the same three kernels again and again while they are damaged; answers how many were wrong."""
    warnings.simplefilter("ignore", CacheWarning)
    cache, wrong = KernelCache(Path(folder)), 0
    for turn in range(int(rounds)):
        number = turn % 3
        entry = cache.load_or_build(description(number), partial(_library_alone, number))
        wrong += entry.library != library(number)
    _say(wrong)


def _library_alone(number: int) -> tuple[bytes, dict[str, Any]]:
    return library(number), {}


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    verbs: dict[str, Callable[..., None]]
    verbs = {"build": build, "hold": hold, "kill_writers": kill_writers, "hammer": hammer}
    verbs[sys.argv[1]](*sys.argv[2:])
