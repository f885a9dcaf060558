"""The compile service: worker processes, which all threads of this process share, build kernels, also those of bundles.

The first worker starts with the first kernel that is not in the cache, and each ends after an idle minute. This process
itself imports no compiler. A kernel that several callers want at the same time is built once: within a process by one
job (workers/pool), and among processes by the cache's lock.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tvmconvgrad.cache.entry import Entry, key_of
from tvmconvgrad.cache.limit import limit
from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.common import process, verbose
from tvmconvgrad.common.errors import CompilerFailed, MissingCompiler
from tvmconvgrad.common.verbose import log
from tvmconvgrad.common.waiting import waiting_for
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.records.choice import Choice, made_by
from tvmconvgrad.spec import Problem
from tvmconvgrad.workers.environment import NAMED, named

if TYPE_CHECKING:
    from tvmconvgrad.workers.pool import Callback, Job, Pool
    from tvmconvgrad.workers.worker import Worker

T = TypeVar("T")
PROGRAM = "tvmconvgrad.compiler.worker"
VARIABLE = "TVMCONVGRAD_COMPILERS"
IDLE_SECONDS = 60.0
"""How long a worker waits for its next kernel."""
SECONDS = 600.0
"""How long a kernel may take, on a machine that is busy with other things; it usually takes less than one."""
_MOST = 1024

_pools: dict[str | None, Pool] = {}
"""By the interpreter that the workers run."""


class Order(NamedTuple):
    """A request for a kernel; `description` is its key in the cache (description.py)."""

    description: dict[str, Any]
    problem: Problem
    target: Target
    schedule: str | None
    choice: Choice | None

    @property
    def key(self) -> str:
        """Names it among all kernels."""
        return key_of(self.description)

    def __str__(self) -> str:
        return f"{self.problem} for {str(self.target)!r}"


def compilers() -> int:
    """How many workers there may be. ValueError for a variable that is no number from 1 to 1024."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= _MOST):
        raise ValueError(f"{VARIABLE}: got {text!r}, expected an int from 1 to {_MOST}")
    return int(text)


def find(order: Order) -> Entry | None:
    """The kernel from the cache."""
    found = KernelCache().load(order.description)
    if found is not None:
        log.debug("%s: found on disk", order)
    return found


def find_or_build(order: Order) -> Entry:
    """The kernel from the cache, or built now. Raises what the compiler raises, and CompilerFailed."""
    found = find(order)
    if found is not None:
        return found
    cache, work = _work(order)
    with waiting_for(f"tvmconvgrad: building {order}, once; the cache keeps it"):
        return _pool().do((cache.folder, order.key), work)


def begin(order: Order, callback: Callback, niceness: int = 0, at_once: int | None = None) -> Job[Entry]:
    """Have a kernel built; a thread of the service calls back when it is there.

    `niceness` is the system's, above this process' own: to what has less of it a processor goes first. With a number
    `at_once` the build begins while fewer of those with such a number run (workers/pool.py).
    """
    cache, work = _work(order, niceness)
    return _pool().submit((cache.folder, order.key), work, callback, at_once=at_once)


def leave(job: Job[Entry], callback: Callback) -> None:
    """Wait no longer for a kernel. It is not built, unless it is begun or others wait for it."""
    for pool in list(_pools.values()):
        pool.leave(job, callback)


def required_features(targets: Sequence[Target]) -> list[frozenset[str]]:
    """What the code of each target may use of the CPU, in the operating system's words. ValueError for a CPU that LLVM
    does not know; MissingCompiler, CompilerFailed."""
    request = {"do": "check", "targets": list(map(str, targets)), **_surroundings()}
    answer = _pool().do(object(), lambda worker: _answer(worker, request, lambda: f"what {request['targets']} need"))
    return list(map(frozenset, answer["requires"]))


def make_all(wanted: Sequence[Callable[[Worker], T]]) -> Generator[T]:
    """What functions return for workers: all of them at the same time, handed out in their order.

    Raises what the first of them does that fails; whoever takes no further one leaves those that have not begun.
    """
    pool, jobs = _pool(), []
    try:
        for work in wanted:
            done: Future[Job[T]] = Future()
            jobs.append((pool.submit(object(), work, done.set_result), done))
        for _, done in jobs:
            yield done.result().value()
    finally:
        for job, done in jobs:
            pool.leave(job, done.set_result)


def making(order: Order, symbol: str | None = None) -> Callable[[Worker, Choice | None], tuple[bytes, dict[str, Any]]]:
    """How a worker makes what an order is of, as things are now, by a choice in place of the order's: a kernel; or with
    a `symbol` an object file for a bundle, whose entry is __tvm_ffi_SYMBOL."""
    surroundings = _surroundings()
    return lambda worker, choice: compile_by(worker, order, surroundings, choice, symbol)


def compile_by(
    worker: Worker, order: Order, surroundings: dict[str, Any], choice: Choice | None, symbol: str | None = None
) -> tuple[bytes, dict[str, Any]]:
    """What a worker makes for an order by this choice in place of the order's."""
    request = {
        "do": "compile",
        "description": order.description,
        "problem": order.problem.to_dict(),
        "target": str(order.target),
        "schedule": order.schedule,
        "choice": None if choice is None else choice.to_dict(),
        "symbol": symbol,
        **surroundings,
    }
    answer = _answer(worker, request, lambda: f"{order}: compiling it")
    return b64decode(answer["code"]), answer["facts"]


def _answer(worker: Worker, request: dict[str, Any], about: Callable[[], str]) -> dict[str, Any]:
    """A worker's answer. Another process has a second try."""
    with process.lock:
        from tvmconvgrad.workers.errors import RaisedInWorker, WorkerFailed

    failures: list[str] = []
    while len(failures) < 2:
        try:
            return worker.ask(request, SECONDS)
        except RaisedInWorker as reason:
            raise reason.error from reason.error.__cause__
        except WorkerFailed as reason:
            failures.append(str(reason))
    raise CompilerFailed(f"{about()} failed twice, in a process each: {'; then '.join(failures)}")


def _pool() -> Pool:
    compilers()  # a nonsensical number is for the caller to know
    verbose.is_on()  # and so are these
    limit()
    python = named()
    if python is None and not sys.executable:
        raise MissingCompiler(f"{NAMED} names no interpreter, and this program has none that could compile")
    if python not in _pools:
        with process.lock:
            from tvmconvgrad.workers.pool import Pool  # only to build
            from tvmconvgrad.workers.worker import Worker

        make = functools.partial(Worker, PROGRAM, sturdy=True, python=python)
        _pools.setdefault(python, Pool(make, size=compilers, idle=lambda: IDLE_SECONDS))
    return _pools[python]


def _work(order: Order, niceness: int = 0) -> tuple[KernelCache, functools.partial[Entry]]:
    """The cache as it is now, and what a worker is to do for an order as things are now."""
    cache = KernelCache(KernelCache().folder)
    return cache, functools.partial(_keep, cache, order, _surroundings(niceness))


def _surroundings(niceness: int = 0) -> dict[str, Any]:
    """What else determines how something is made: the caller's variables, its folder, and how urgent it is."""
    return {"environment": dict(os.environ), "folder": _folder(), "niceness": niceness}


def _keep(cache: KernelCache, order: Order, surroundings: dict[str, Any], worker: Worker) -> Entry:
    seconds: list[float] = []

    def build() -> tuple[bytes, dict[str, Any]]:
        begin = time.perf_counter()
        compile_as = functools.partial(compile_by, worker, order, surroundings)
        (library, facts), refused = made_by(order.choice, compile_as)
        seconds.append(time.perf_counter() - begin)
        # kept in place of what was chosen, so that nobody tries again
        return library, {**facts, "set_aside": refused} if refused else facts

    entry = cache.load_or_build(order.description, build)
    _report(order, entry, *seconds)
    return entry


def _report(order: Order, entry: Entry, seconds: float | None = None) -> None:
    """Say how long a build took; None: another process had built the kernel."""
    schedule = entry.facts["schedule"]
    if seconds is None:
        log.debug("%s: found on disk, built by another process", order)
        return
    log.debug("%s: built in %.0f ms by %s", order, seconds * 1e3, schedule)
    if verbose.is_on():
        verbose.report(verbose.describe("create:cache_miss", order.problem, str(order.target), schedule), seconds)


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep
