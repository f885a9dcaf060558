"""Convolutions on a GPU, by a driver that stands in for NVIDIA's, and CPU tensors that stand in for a GPU's.

Only what PyTorch itself does on a GPU is not tested: which stream is current, and that it calls us for the key CUDA.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.support.gpu.driver import FakeGpus
from tests.torch.support import all_ours, called, draw, steps
from tvmconvgrad.nvidia import driver
from tvmconvgrad.torch import devices
from tvmconvgrad.torch.dispatch import operators
from tvmconvgrad.torch.dispatch.dispatcher import NAMES, is_in_force
from tvmconvgrad.torch.dispatch.override import Override
from tvmconvgrad.torch.steps import findings
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.comparison import CALLS_EACH

GPU, STREAM = 1, 41
CPU = torch.device("cpu")
X, W = torch.randint(-3, 4, (2, 4, 7, 6)).float(), torch.randint(-3, 4, (5, 4, 3, 2)).float()


@pytest.fixture(autouse=True)
def on_gpu(gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    """All convolutions are of tensors on the second GPU, while its stream 41 is current. The first GPU is older."""
    monkeypatch.setattr(driver.Driver, "architecture", lambda _, device: ("sm_80", "sm_90")[device])
    gpu = devices.Gpu(torch.device("cuda", GPU))
    monkeypatch.setattr(gpu, "where", CPU)
    monkeypatch.setattr(gpu._kind, "device", CPU)
    monkeypatch.setattr(gpu._kind, "stream", lambda: STREAM)
    monkeypatch.setattr(gpu, "_delay", lambda: None)
    monkeypatch.setattr(devices, "time", SimpleNamespace(perf_counter_ns=lambda: 0))
    monkeypatch.setattr(Override, "_device_of", lambda *_: gpu)
    yield gpus


def launches(gpus: FakeGpus) -> list[str]:
    return [line for line in gpus.log if line.startswith("run_")]


def forward() -> torch.Tensor:
    with torch.no_grad():
        return torch.conv2d(X, W)


def built() -> None:
    for build in list(Build.pending):
        build.wait()


@pytest.mark.usefixtures("at_once")
def test_random_convolutions(on_gpu: FakeGpus) -> None:
    """Bit for bit, on the GPU and the stream of PyTorch's choice, and nobody waits for the end."""
    for drawn in [one for one in map(draw, range(30)) if one.input.dtype == torch.float32][:5]:
        expected = drawn.results()
        with cgt.enabled():
            got = drawn.results()
        for ours, theirs in zip(got, expected, strict=True):
            assert ours is not None
            assert theirs is not None
            assert torch.equal(ours, theirs), drawn
            assert steps(ours) == steps(theirs), drawn
    assert all_ours(), [step.reason for step in called()]
    kernels = [step.build.kernel for step in called() if step.build]
    assert {str(kernel.target) for kernel in kernels if kernel} == {"cuda -arch=sm_90a"}
    assert {line for line in on_gpu.log if line.startswith("load")} == {f"load on {GPU}"}
    assert len(launches(on_gpu)) >= 15
    assert all(line.endswith(f" on {STREAM}") for line in launches(on_gpu))
    assert not [line for line in on_gpu.log if "synchronize" in line or "event" in line]
    assert on_gpu.library.fake_contexts() == 0


def test_times_are_those_of_the_gpu(on_gpu: FakeGpus) -> None:
    """By events on the stream, between which the stand-in finds half a millisecond."""
    expected = forward()
    with cgt.enabled():
        for _ in range(2 + 2 * CALLS_EACH):
            assert torch.equal(forward(), expected)
            built()
        (row,) = cgt.report().rows
    assert (row.ours_ms, row.theirs_ms, row.calls) == (0.5, 0.5, 2 + 2 * CALLS_EACH)
    assert len(launches(on_gpu)) >= CALLS_EACH
    marks = [line.split() for line in on_gpu.log if line.startswith(("event", "synchronize"))]
    assert [words[0] for words in marks] == 2 * CALLS_EACH * ["event", "event", "synchronize"]
    assert {words[-1] for words in marks} == {str(STREAM)}
    (line,) = findings._path().read_text().splitlines()
    assert '"gpu": "fake 1"' in line
    assert '"target": "cuda -arch=sm_90a"' in line


@pytest.mark.parametrize(("starting_ms", "counted"), [(0.4, 0.5), (2.0, 2.0)])
def test_the_greater_of_the_gpus_time_and_the_cpus_counts(
    starting_ms: float, counted: float, on_gpu: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU has other work until its call is there. The CPU's time is that between two looks at a clock."""
    clock = itertools.count(0, round(starting_ms * 1e6))
    order: list[int] = []
    gpu = devices.Gpu(torch.device("cuda", GPU))
    monkeypatch.setattr(gpu._kind, "stream", lambda: STREAM)
    monkeypatch.setattr(gpu, "_delay", lambda: order.append(len(on_gpu.log)))
    monkeypatch.setattr(devices, "time", SimpleNamespace(perf_counter_ns=lambda: next(clock)))
    assert gpu.timed(lambda: order.append(len(on_gpu.log))) == (None, round(counted * 1e6))
    begin, end = (number for number, line in enumerate(on_gpu.log) if line.startswith("event"))
    assert order[0] <= begin < order[1] <= end


def test_what_is_recorded_is_not_timed_and_loads_no_code(on_gpu: FakeGpus) -> None:
    """A graph of launches has our kernel if that has run before, else PyTorch's."""
    expected = forward()
    with cgt.enabled():
        forward()
        forward()
        built()
        on_gpu.fail("cuStreamIsCapturing", 1)
        for _ in range(3):
            assert torch.equal(forward(), expected)
        (step,) = called()
        assert (step.comparison.ours, step.comparison.theirs) == ([], [])
        step.comparison.is_ours = True
        assert torch.equal(forward(), expected)
        assert not launches(on_gpu)
        on_gpu.fail("", 0)
        forward()
        before = len(on_gpu.log)
        on_gpu.fail("cuStreamIsCapturing", 1)
        assert torch.equal(forward(), expected)
        assert {line[:4] for line in on_gpu.log[before:]} == {"run_"}


@pytest.mark.usefixtures("at_once")
def test_tensors_are_aligned_for_a_gpu() -> None:
    odd = torch.cat([torch.zeros(1), X.flatten()])[1:].view(X.shape)
    assert odd.data_ptr() % 16
    addresses = []
    with cgt.enabled():
        forward()
        (step,) = called()
        run = step.device.run
        step.device.run = lambda kernel, *tensors: (  # type: ignore[method-assign]
            addresses.extend(tensor.data_ptr() % 16 for tensor in tensors),
            run(kernel, *tensors),
        )
        assert torch.equal(torch.conv2d(odd, W), torch.nn.functional.conv2d(X.double(), W.double()).float())
    assert addresses == [0, 0, 0]


@pytest.mark.usefixtures("at_once")
def test_after_an_error_of_the_driver_pytorch_computes(on_gpu: FakeGpus) -> None:
    expected = forward()
    on_gpu.fail("cuLaunchKernel", 700)
    with cgt.enabled():
        assert torch.equal(forward(), expected)
        (row,) = cgt.report().rows
    assert row.by == "PyTorch"
    assert row.why == "CudaError: cuLaunchKernel: a fault (700)"


def test_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where PyTorch's "cuda" is another maker's."""

    def missing() -> Any:
        raise driver.MissingGpu("this machine has no NVIDIA GPU")

    monkeypatch.setattr(driver, "driver", missing)
    with cgt.enabled():
        forward()
        (row,) = cgt.report().rows
    assert (row.by, row.why) == ("PyTorch", "this machine has no NVIDIA GPU")


def test_the_key_cuda_is_overridden_as_well() -> None:
    assert all(is_in_force(name, "CUDA") for name in NAMES)


class On:
    """A tensor, as far as asking for its device goes."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


def test_tensors_on_several_devices_are_pytorchs() -> None:
    def common(*names: str) -> Any:
        return devices.common(*map(On, names), None)  # type: ignore[arg-type]

    assert common("cpu", "cpu") is devices.CPU
    assert common("cuda:1", "cuda:1") is common("cuda:1")
    assert (common("cuda:1").gpu, common("cuda:0").where) == (1, torch.device("cuda:0"))
    assert {common("cuda:0", "cpu"), common("cuda:0", "cuda:1"), common("meta")} == {None}
    with pytest.raises(ValueError, match="tensors on devices cpu, meta, expected all on the CPU"):
        operators._device_of(X, torch.ones(1, device="meta"))
