"""Compiling in a child that was forked in the middle of a compilation: elsewhere, with the same result and errors."""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import tvmconvgrad as cg
from tvmconvgrad import process
from tvmconvgrad.compiling import separate
from tvmconvgrad.compiling.missing import MissingCompiler

OP = cg.ConvolutionBackpropFilters(
    strides=(1,), dilations=(1,), pads_begin=(1,), pads_end=(1,), filter_shape=(3, 4, 16)
)
SHAPES = (2, 7, 4), (2, 7, 16)


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is, and nothing is built."""
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(separate._compiler, "lost", True)
    process.forget()


@pytest.mark.usefixtures("lost")
def test_a_kernel_is_built_elsewhere() -> None:
    result = OP(*(np.ones(shape, np.float32) for shape in SHAPES))
    assert np.array_equal(result, np.broadcast_to(np.array([12, 14, 12])[:, None, None], (3, 4, 16)))


@pytest.mark.usefixtures("lost")
def test_its_errors_are_those_of_the_builder() -> None:
    with pytest.raises(ValueError, match=r"^schedule: 'nonsense'"):
        OP.compile(*SHAPES, schedule="nonsense")


@pytest.mark.usefixtures("lost")
def test_without_a_python_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "")
    with pytest.raises(MissingCompiler, match="TVMCONVGRAD_COMPILER names no interpreter"):
        OP.compile(*SHAPES)
    with pytest.raises(RuntimeError, match="forked while another thread was compiling"):
        separate.compiling().__enter__()  # as for a bundle


def test_what_a_child_knows_to_be_lost() -> None:
    mine, theirs, nobody = process.Section(), process.Section(), process.Section()
    inside, over = threading.Event(), threading.Event()

    def stay() -> None:
        with theirs:
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(60)
    with mine, process.lock:
        child = os.fork()
        if child == 0:
            os._exit(4 * mine.lost + 2 * theirs.lost + nobody.lost)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert not theirs.lost


def test_a_module_that_another_thread_has_half_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import threading\nthreading.current_thread().stay()\n")
    monkeypatch.syspath_prepend(tmp_path)
    section, inside, over = process.Section(), threading.Event(), threading.Event()

    class Importing(threading.Thread):
        def stay(self) -> None:
            inside.set()
            over.wait(60)

        def run(self) -> None:
            importlib.import_module("slow_to_import")

    thread = Importing()
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(3 if section.is_lost() and not section.lost else 1)
    assert not section.is_lost()
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    child = os.fork()
    if child == 0:
        os._exit(4 if not section.is_lost() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_turns_of_threads_that_are_not_in_the_child() -> None:
    turns, inside, over = process.Turns(), threading.Event(), threading.Event()

    def stay() -> None:
        with turns.of("key"):
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        with turns.of("key"), turns.of("key"):
            os._exit(7)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
