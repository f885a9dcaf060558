"""Kernels now or later: as futures, in lists, and on the command line."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tvmconvgrad as cg
from tests.service.conftest import Acting
from tests.service.processes import OP, SHAPES, until
from tvmconvgrad import futures
from tvmconvgrad.cli import main
from tvmconvgrad.common import process
from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import service
from tvmconvgrad.layers import Layer, write_layers

LAYER = Layer(name="one", batch=1, channels=2, filters=3, input_size=(4,), kernel=(1,))
OTHER = Layer(name="other", batch=1, channels=2, filters=3, input_size=(5,), kernel=(1,))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is built, on disk or in this process."""
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    process.forget()
    return tmp_path / "cache"


def shapes(height: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (2, height, 5, 4), (2, height, 5, 16)


def right(kernel: cg.Kernel, height: int) -> bool:
    result = kernel(*(np.ones(shape, np.float32) for shape in shapes(height)))
    return bool((result[1, 1] == 2 * height * 5).all())


def test_a_kernel_later_and_at_once(empty: Path) -> None:
    futures = {height: OP.compile_async(*shapes(height)) for height in (6, 7, 6)}
    assert all(isinstance(future, Future) for future in futures.values())
    assert all(right(future.result(120), height) for height, future in futures.items())
    assert len(list(empty.glob("*.kernel"))) == 2
    assert OP.compile_async(*shapes(6)).done()
    assert right(OP.compile(*shapes(7)), 7)


def test_what_is_wrong_with_a_later_kernel(empty: Path) -> None:
    with pytest.raises(ValueError, match=r"^filter_shape: "):
        OP.compile_async((2, 6, 5, 9), SHAPES[1])
    with pytest.raises(TypeError, match="schedule: 3 is not a name"):
        OP.compile_async(*SHAPES, schedule=3)  # type: ignore[arg-type]
    future = OP.compile_async(*SHAPES, schedule="nonsense")
    with pytest.raises(ValueError, match=r"schedule: 'nonsense' is unknown .*, expected one of"):
        future.result(120)
    future = OP.compile_async(*SHAPES, target="llvm -mcpu=nonsense")
    assert "unknown to LLVM" in str(future.exception(120))


def test_asyncio_waits_for_kernels(empty: Path) -> None:
    async def both() -> list[Any]:
        futures = [asyncio.wrap_future(OP.compile_async(*shapes(height))) for height in (6, 8)]
        return await asyncio.gather(*futures)

    assert [right(kernel, height) for kernel, height in zip(asyncio.run(both()), (6, 8))] == [True, True]


def test_a_call_that_waits_for_what_is_asked_for(empty: Path) -> None:
    """The thread that has built it loads it for the future, and this one for the call."""
    future = OP.compile_async(*shapes(9))
    result = OP(*(np.ones(shape, np.float32) for shape in shapes(9)))
    assert result[1, 1, 0, 0] == 2 * 9 * 5
    assert right(future.result(60), 9)


def test_a_cancelled_kernel_is_not_built(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_COMPILERS", "1")
    service.begin(acting.order(0, "sleep 0.5"), lambda job: None)
    assert until(lambda: acting.builds() == 1)
    future, other = OP.compile_async(*shapes(6)), OP.compile_async(*shapes(7))
    assert future.cancel()
    assert other.exception(60) is not None  # what this worker makes is no library
    assert acting.builds() == 2


def test_prepare_builds_what_is_not_there(empty: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    file = tmp_path / "layers.json"
    write_layers(file, [OTHER])
    wanted = [LAYER, file, LAYER, OP.problem(*SHAPES), LAYER.gradients()[0]]
    assert cg.prepare(wanted, progress=lambda *words: told.append(words)) == 5
    assert [count for _, count, _ in told] == list(range(6))
    assert {total for _, _, total in told} == {5}
    assert len(list(empty.glob("*.kernel"))) == 5
    assert cg.prepare(wanted, progress=True) == 0
    assert cg.prepare(LAYER, only="data", dtype=["f32", "bf16"]) == 1


@pytest.mark.parametrize(
    ("wanted", "options", "error", "words"),
    [
        ([], {}, ValueError, "wanted: is empty"),
        ([3], {}, TypeError, "wanted: 3 of type int, expected a suite's name"),
        ("nonsense", {}, ValueError, "nonsense"),
        ("resnet_50", {"target": "nonsense"}, ValueError, "target: kind 'nonsense'"),
        ("resnet_50", {"dtype": "f64"}, ValueError, "f64"),
        ("resnet_50", {"substring": "nonsense"}, ValueError, "no layer of resnet_50 has 'nonsense'"),
        ("resnet_50", {"target": "llvm -mcpu=cortex-a76"}, ValueError, "not run"),
    ],
)
def test_what_prepare_refuses(
    wanted: Any, options: dict[str, Any], error: type[Exception], words: str, acting: Acting
) -> None:
    with pytest.raises(error, match=words):
        cg.prepare(wanted, **options)
    assert not service._pools


def test_prepare_builds_the_others_where_one_cannot_be_built(empty: Path) -> None:
    with pytest.raises(ValueError, match="unknown to LLVM"):
        cg.prepare(LAYER, target=["llvm -mcpu=nonsense", "llvm -mcpu=native"])
    assert len(list(empty.glob("*.kernel"))) == 2


def test_the_command(empty: Path, tmp_path: Path) -> None:
    file = tmp_path / "layers.json"
    write_layers(file, [LAYER, OTHER])
    for built in (2, 0):
        done = CliRunner().invoke(main, ["prepare", str(file), "--only", "filters", "--dtype", "f16"])
        assert done.exit_code == 0, done.output
        assert done.output.splitlines()[-1].split() == ["built", str(built)]
    wrong = CliRunner().invoke(main, ["prepare", "nonsense"])
    assert wrong.exit_code == 2


def test_a_crash_is_one_line_on_the_command_line(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PROGRAM", "tests.service.nothing")
    done = CliRunner().invoke(main, ["prepare", "resnet_50", "--layer", "conv1", "--only", "filters", "--batch", "1"])
    assert done.exit_code == 2
    assert "failed twice" in done.output
    assert "No module named" in done.output


def test_futures_are_many(acting: Acting) -> None:
    futures = [OP.compile_async(*shapes(height)) for height in range(6, 46)]
    done, _ = wait(futures, 60)
    assert len(done) == 40


@pytest.mark.parametrize(("cpus", "nicer"), [(3, 19), (2, 10), (1, 10)])
def test_what_is_built_in_the_background_is_nice(
    empty: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, nicer: int
) -> None:
    """More so where two threads leave a CPU idle; and the next one is not. The C compiler tells its niceness."""
    monkeypatch.setattr(service, "_pools", pools := {})
    monkeypatch.setattr(futures, "get_num_threads", lambda: 2)
    monkeypatch.setattr(futures, "usable_cpus", lambda: cpus)
    here = os.getpriority(os.PRIO_PROCESS, 0)
    teller = empty.parent / "cc"
    teller.write_text("#!/bin/sh\nnice >&2\nexit 1\n")
    teller.chmod(0o755)
    monkeypatch.setenv("CXX", str(teller))
    assert str(OP.compile_async(*shapes(6)).exception(60)).split()[-1] == str(min(here + nicer, 19))
    pool = pools[None]
    nice = {os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in pool._workers}
    assert nice == {min(here + nicer, 19)}
    with pytest.raises(MissingLinker) as error:
        OP.compile(*shapes(6))
    assert str(error.value).split()[-1] == str(here)
    pool.close()
