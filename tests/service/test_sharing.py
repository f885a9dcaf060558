"""One build for all who want the same, as many workers as are wanted, and their end."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service.conftest import Acting
from tests.service.processes import ended, until
from tvmconvgrad.common.errors import CompilerFailed, MissingLinker
from tvmconvgrad.compiler import service
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.workers.pool import PoolClosed


def test_threads_that_want_the_same_share_one_build(acting: Acting) -> None:
    with ThreadPoolExecutor(8) as threads:
        orders = [acting.order(number, "sleep 0.2") for number in (1, 2) for _ in range(4)]
        found = list(threads.map(service.find_or_build, orders))
    assert [entry.description["number"] for entry in found] == [1] * 4 + [2] * 4
    assert (acting.builds(1), acting.builds(2)) == (1, 1)
    assert service.find_or_build(acting.order(1, "sleep 0.2")).library == found[0].library
    assert acting.builds() == 2


def test_one_after_another_takes_one_worker_and_many_at_once_take_all(acting: Acting) -> None:
    assert not service._pools
    for number in range(3):
        service.find_or_build(acting.order(number))
    assert len(acting.workers()) == 1
    jobs = [service.begin(acting.order(number, "sleep 0.1"), lambda job: None) for number in range(3, 9)]
    assert until(lambda: len(acting.workers()) == 2)
    service.find_or_build(acting.order(8, "sleep 0.1"))
    assert len(acting.workers()) == 2
    assert until(lambda: acting.builds() == 9)
    assert len({job.key for job in jobs}) == 6


def test_who_waits_goes_first_and_what_nobody_wants_is_not_begun(
    acting: Acting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVMCONVGRAD_COMPILERS", "1")
    done: list[int] = []

    def note(job: Any) -> None:
        done.append(job.value().description["number"])

    jobs = [service.begin(acting.order(number, "sleep 0.05"), note) for number in range(5)]
    service.leave(jobs[3], note)
    service.find_or_build(acting.order(4, "sleep 0.05"))
    assert done.index(4) < 2
    assert until(lambda: len(done) == 4)
    assert acting.builds(3) == 0


def test_idle_workers_end(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "IDLE_SECONDS", 0.3)
    service.find_or_build(acting.order(1))
    (first,) = (worker.pid for worker in acting.workers())
    assert until(lambda: ended(first) and not acting.folders())
    assert until(lambda: not any(pool._threads for pool in service._pools.values()))
    service.find_or_build(acting.order(2))
    assert acting.workers()[0].pid != first


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999"])
def test_nonsensical_numbers_of_workers(text: str, acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_COMPILERS", text)
    with pytest.raises(ValueError, match=f"TVMCONVGRAD_COMPILERS: got '{text}', expected an int from 1 to 1024"):
        service.find_or_build(acting.order(1))


def test_a_worker_that_crashes_costs_one_retry(acting: Acting) -> None:
    assert service.find_or_build(acting.order(1, "stumble")).library
    assert acting.builds(1) == 2
    with pytest.raises(CompilerFailed, match=r"failed twice, in a process each: the process ended with -11; then the"):
        service.find_or_build(acting.order(2, "crash"))
    assert acting.builds(2) == 2
    assert service.find_or_build(acting.order(3)).library


def test_a_worker_that_hangs_is_ended(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    service.find_or_build(acting.order(1))
    monkeypatch.setattr(service, "SECONDS", 2.0)
    with pytest.raises(CompilerFailed, match="it took too long; then it took too long"):
        service.find_or_build(acting.order(2, "hang"))
    monkeypatch.setattr(service, "SECONDS", 60.0)
    assert service.find_or_build(acting.order(3)).library


def test_what_is_raised_arrives(acting: Acting) -> None:
    with pytest.raises(ValueError, match=r"^target: is wrong$"):
        service.find_or_build(acting.order(1, "raise value"))
    with pytest.raises(MissingLinker, match=r"^install gcc$"):
        service.find_or_build(acting.order(2, "raise linker"))
    found = service.find_or_build(acting.order(3, "raise refused", Choice("rule", (), "plan")))
    assert found.facts["set_aside"] == "draws nothing"
    assert len({worker.pid for worker in acting.workers()}) == 1


@pytest.mark.parametrize("times", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_workers_killed_at_any_moment(acting: Acting, times: int) -> None:
    chance, kills, over = random.Random(3), 0, threading.Event()

    def want(first: int) -> list[str]:
        found: list[str] = []
        while not over.is_set():
            try:
                service.find_or_build(acting.order(first + 2 * len(found), "sleep 0.02"))
                found.append("made")
            except CompilerFailed as reason:
                found.append(str(reason))
        return found

    with ThreadPoolExecutor(2) as threads:
        results = [threads.submit(want, first) for first in range(2)]
        while kills < times:
            time.sleep(chance.uniform(0, 0.3))
            for worker in chance.sample(acting.workers(), min(1, len(acting.workers()))):
                worker.kill()
                kills += 1
        over.set()
        found = [each for result in results for each in result.result(60)]
    assert found
    wrong = [each for each in found if each != "made"]
    assert all("ended with -9" in each for each in wrong)
    assert 2 * len(wrong) <= kills  # each has had a second try
    assert service.find_or_build(acting.order(10_000)).library
    assert len(acting.folders()) <= 2


def test_the_end_of_a_pool(acting: Acting) -> None:
    errors: list[BaseException | None] = []
    for number in range(4):
        service.begin(acting.order(number, "hang"), lambda job: errors.append(job.error))
    assert until(lambda: acting.builds() == 2)
    (pool,) = service._pools.values()
    pids = [worker.pid for worker in acting.workers()]
    pool.close()
    assert all(map(ended, pids))
    assert until(lambda: len(errors) == 4)
    assert sum(isinstance(error, PoolClosed) for error in errors) == 2
    with pytest.raises(PoolClosed):
        service.find_or_build(acting.order(9))


def test_the_background_is_left_when_somebody_waits(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_COMPILERS", "1")
    asked: list[tuple[int, int]] = []
    compile_by = service.compile_by

    def noted(worker: Any, order: Any, surroundings: Any, choice: Any) -> Any:
        asked.append((order.description["number"], surroundings["niceness"]))
        return compile_by(worker, order, surroundings, choice)

    monkeypatch.setattr(service, "compile_by", noted)
    for number in range(3):
        service.begin(acting.order(number, "sleep 0.2"), lambda job: None, niceness=5)
    assert until(lambda: acting.builds() == 1)
    service.find_or_build(acting.order(2, "sleep 0.2"))
    assert until(lambda: len(asked) == 3)
    assert asked == [(0, 5), (2, 0), (1, 5)]
