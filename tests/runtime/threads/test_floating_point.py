"""The floating-point modes of the calling thread hold for all of a call, in the pool, too: rounding, tiny numbers."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import WIDE_DATA, WIDE_FILTERS, floats
from tests.runtime.services import TASK, own_threads
from tests.support.cases.case import Case
from tests.support.cases.convolution import Array

# fenv.h of glibc: to nearest, upward, downward, toward zero
ROUNDINGS = {"x86_64": (0, 0x800, 0x400, 0xC00), "aarch64": (0, 0x400000, 0x800000, 0xC00000)}
CALLS = 30  # in one of which workers come before all tasks have begun
libm = ctypes.CDLL("libm.so.6")
pytestmark = pytest.mark.skipif(platform.machine() not in ROUNDINGS, reason="another fenv.h")
NEAREST, UPWARD, DOWNWARD, TO_ZERO = ROUNDINGS.get(platform.machine(), (0, 0, 0, 0))


@pytest.fixture(autouse=True)
def to_nearest() -> Iterator[None]:
    yield
    libm.fesetround(NEAREST)


def third() -> str:
    """1/3 in f32, as the calling thread rounds."""
    return (np.ones(1, np.float32) / np.full(1, 3, np.float32))[0].tobytes()[::-1].hex()


def test_every_worker_rounds_as_its_caller_does() -> None:
    for mode, bits in ((NEAREST, "3eaaaaab"), (UPWARD, "3eaaaaab"), (DOWNWARD, "3eaaaaaa"), (TO_ZERO, "3eaaaaaa")) * 2:
        found: dict[int, str] = {}
        begun = threading.Barrier(4)

        def run(task: int, group: Any, data: Any, found: Any = found, begun: Any = begun) -> int:
            begun.wait(60)  # so that each thread has one
            found[threading.get_ident()] = third()
            return 0

        with own_threads(4) as launch:
            libm.fesetround(mode)
            status = launch(TASK(run), None, 4)
            libm.fesetround(NEAREST)
        assert status == 0
        assert list(found.values()) == [bits] * 4


def results(case: Case, inputs: list[Array], mode: int) -> set[bytes]:
    """The bits of a case's result on one thread and on several, in a thread of Python that rounds so."""
    kernel = case.call.compile()

    def work() -> set[bytes]:
        found = set()
        for threads in (1, 2, 4, 2):
            cg.set_num_threads(threads)
            libm.fesetround(NEAREST)
            kernel(*inputs)  # workers, if there are any, have the usual mode
            libm.fesetround(mode)
            try:
                found.update(kernel(*inputs).tobytes() for _ in range(CALLS))
            finally:
                libm.fesetround(NEAREST)
        return found

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(timeout=100)


@pytest.mark.parametrize("case", [WIDE_FILTERS, WIDE_DATA], ids=["filters", "data"])
def test_rounding_does_not_depend_on_threads(case: Case) -> None:
    shapes = case.call.compile().problem.input_shapes
    inputs = [floats(shape, seed) for seed, shape in enumerate(shapes)]
    found = [results(case, inputs, mode) for mode in (NEAREST, UPWARD, DOWNWARD)]
    assert [len(bits) for bits in found] == [1, 1, 1]
    nearest, up, down = (np.frombuffer(*bits, np.float32) for bits in found)
    assert (up >= nearest).all()
    assert (nearest >= down).all()
    assert (up > down).any()


@pytest.mark.parametrize("case", [WIDE_FILTERS, WIDE_DATA], ids=["filters", "data"])
def test_flushing_does_not_depend_on_threads(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
    kernel = case.call.compile()
    shapes = kernel.problem.input_shapes
    inputs = [floats(shape, seed) * np.float32(1e-20) for seed, shape in enumerate(shapes)]
    cg.set_num_threads(8)
    kernel(*inputs)  # the workers are there, and do not flush
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush")
    try:
        cg.set_num_threads(1)
        alone = kernel(*inputs)
        for threads in (2, 3, 8, 2):
            cg.set_num_threads(threads)
            assert {kernel(*inputs).tobytes() for _ in range(CALLS)} == {alone.tobytes()}
    finally:
        torch.set_flush_denormal(False)
    tiny = np.finfo(np.float32).tiny
    assert not (alone.view(np.uint32) & 0x7F800000 == 0)[alone != 0].any()  # none is subnormal
    gradual = kernel(*inputs)
    assert ((gradual != 0) & (abs(gradual) < tiny)).any()  # and without it some are
    cg.set_num_threads(1)
    assert kernel(*inputs).tobytes() == gradual.tobytes()
