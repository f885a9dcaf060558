"""A kernel's code on GPUs: loaded where it is first called, then launched."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvmconvgrad.common import process
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.nvidia.launches import Argument, Launch
from tvmconvgrad.nvidia.tensor_maps import Tensor, TensorMap
from tvmconvgrad.spec import Problem

_NO_BINARY = ("(209)", "(218)", "(222)")  # no code for this device; PTX of a later kind than the driver knows
_NAMES = {"first": 0, "second": 1, "out": 2}


class _Frame:
    """The memory of one call: the addresses that its launches are passed, and maps of what lies there."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.tensors = [ctypes.c_void_p() for _ in _NAMES]
        offsets = sorted({place for launch in launches for place in launch.places if isinstance(place, int)})
        self.pieces = {offset: ctypes.c_void_p() for offset in offsets}
        self.maps: dict[TensorMap, tuple[ctypes.Array[ctypes.c_ubyte], int]] = {}  # and the address that it is for
        self.recording = ctypes.c_int()
        self.arguments = [driver.pointers([self._argument(each) for each in launch.arguments]) for launch in launches]

    def _argument(self, argument: Argument) -> Any:
        if isinstance(argument, TensorMap):
            return self.maps.setdefault(argument, (driver.room_for_map(), 0))[0]
        return self._place(argument)

    def _place(self, place: int | Tensor) -> ctypes.c_void_p:
        return self.pieces[place] if isinstance(place, int) else self.tensors[_NAMES[place]]

    def fill(self, device: driver.Driver, addresses: Sequence[int], workspace: int) -> None:
        for place, address in zip(self.tensors, addresses):
            place.value = address
        for offset, place in self.pieces.items():
            place.value = workspace + offset
        for tensor_map, (room, before) in self.maps.items():
            address = self._place(tensor_map.tensor).value or 0
            if address != before:
                device.encode(room, tensor_map, address)
                self.maps[tensor_map] = room, address


class Where(NamedTuple):
    """Where a call runs: the GPU's number, and a stream of it."""

    gpu: int
    stream: int


class CudaFunction:
    """A kernel's launches. It is called with addresses on a GPU, and returns as soon as they are under way."""

    def __init__(self, code: bytes, launches: Sequence[Launch], arch: str) -> None:
        self._code, self._launches, self._arch = code, tuple(launches), arch
        self._turns = process.Turns()
        self._loaded: dict[int, list[int]] = {}  # by the GPU's number: the launches' functions
        self._idle: list[_Frame] = []  # a call takes one out: calls of several threads have their own

    def __call__(self, where: Where, first: int, second: int, out: int, workspace: int) -> None:
        """Launch on dense tensors at these addresses. ValueError where the code is not for this GPU, CudaError."""
        device = driver.driver()
        with device.on(where.gpu):
            functions = self._loaded.get(where.gpu) or self._load(device, where.gpu)
            try:
                frame = self._idle.pop()
            except IndexError:
                frame = _Frame(self._launches)
            frame.fill(device, (first, second, out), workspace)
            if device.records(where.stream, frame.recording):
                _recorded.add(self)
            for function, launch, arguments in zip(functions, self._launches, frame.arguments):
                device.launch(function, launch, where.stream, arguments)
        self._idle.append(frame)

    def _load(self, device: driver.Driver, gpu: int) -> list[int]:
        with self._turns.of(gpu):
            if gpu not in self._loaded:
                check_runs(self._arch, gpu, device.architecture(gpu))
                try:
                    module = device.load(gpu, self._code)
                except driver.CudaError as reason:
                    if not str(reason).endswith(_NO_BINARY):
                        raise
                    raise ValueError(f"{_refused(self._arch, gpu, device.architecture(gpu))}: {reason}") from None
                weakref.finalize(self, device.discard, gpu, module).atexit = False
                loaded = [device.function(module, each.function, each.shared_bytes) for each in self._launches]
                self._loaded[gpu] = loaded
            return self._loaded[gpu]


_recorded: set[CudaFunction] = set()
"""Those that a graph of launches may run again: never unloaded, since nobody says when the last such graph is gone."""


def runs_on(arch: str, there: str) -> bool:
    """Whether code for an architecture, with its PTX, runs on a GPU of another one."""
    number, of_gpu = (int(name[3:].rstrip("af")) for name in (arch, there))
    if arch.endswith("a"):
        return number == of_gpu
    return number <= of_gpu and (not arch.endswith("f") or number // 10 == of_gpu // 10)


def check_runs(arch: str, gpu: int, there: str) -> None:
    """Raise ValueError where code for an architecture does not run on a GPU."""
    if not runs_on(arch, there):
        raise ValueError(_refused(arch, gpu, there))


def _refused(arch: str, gpu: int, there: str) -> str:
    return f"target: code for 'cuda -arch={arch}' does not run on cuda:{gpu}, which is {there}"


def load_kernel(code: bytes, facts: Mapping[str, Any], problem: Problem, target: Target) -> CudaFunction:
    """The function of a kernel of the cache, for its backend (machines/backends.py)."""
    return CudaFunction(code, [Launch.from_dict(launch) for launch in facts["launches"]], str(target.arch))
