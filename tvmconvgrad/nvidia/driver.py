"""NVIDIA's driver, as far as running kernels takes it: its library, which every machine with such a GPU has.

Kernels run in each device's primary context, which PyTorch, CuPy and all that use CUDA's runtime share.
"""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.nvidia.tensor_maps import ALIGNMENT, SIZE, TensorMap

LIBRARY = "libcuda.so.1"
LEGACY_STREAM = 1  # CU_STREAM_LEGACY: the default stream, which waits for all others and they for it
_OUT_OF_MEMORY = 2
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
_WITHOUT_TIME = 2  # CU_EVENT_DISABLE_TIMING
_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

_INT, _UINT, _SIZE, _POINTER = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p
# Handles, addresses and streams are pointers or as wide as pointers.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (_UINT,),
    "cuGetErrorString": (_INT, _POINTER),
    "cuDeviceGetCount": (_POINTER,),
    "cuDeviceGet": (_POINTER, _INT),
    "cuDeviceGetName": (_POINTER, _INT, _INT),
    "cuDeviceGetAttribute": (_POINTER, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuModuleLoadData": (_POINTER, ctypes.c_char_p),
    "cuModuleUnload": (_POINTER,),
    "cuModuleGetFunction": (_POINTER, _POINTER, ctypes.c_char_p),
    "cuFuncSetAttribute": (_POINTER, _INT, _INT),
    "cuLaunchKernel": (_POINTER, *(7 * [_UINT]), _POINTER, _POINTER, _POINTER),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamIsCapturing": (_POINTER, _POINTER),
    "cuCtxSynchronize": (),
    "cuStreamWaitEvent": (_POINTER, _POINTER, _UINT),
    "cuEventCreate": (_POINTER, _UINT),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventElapsedTime": (_POINTER, _POINTER, _POINTER),
    "cuEventDestroy_v2": (_POINTER,),
    "cuMemAllocAsync": (_POINTER, _SIZE, _POINTER),
    "cuMemFreeAsync": (_POINTER, _POINTER),
    "cuMemsetD8Async": (_POINTER, ctypes.c_ubyte, _SIZE, _POINTER),
    "cuMemcpyHtoD_v2": (_POINTER, _POINTER, _SIZE),
    "cuMemcpyDtoH_v2": (_POINTER, _POINTER, _SIZE),
}


_NUMBERS = (_INT, _INT, _INT, _INT)  # interleaving, swizzling, fetching, what is outside
# Of drivers since CUDA 12, for GPUs since sm_90.
_LATER: dict[str, tuple[Any, ...]] = {
    "cuLaunchKernelEx": (_POINTER, _POINTER, _POINTER, _POINTER),
    "cuTensorMapEncodeTiled": (_POINTER, _INT, _UINT, _POINTER, *(4 * [_POINTER]), *_NUMBERS),
    "cuTensorMapEncodeIm2col": (_POINTER, _INT, _UINT, _POINTER, *(4 * [_POINTER]), _UINT, _UINT, _POINTER, *_NUMBERS),
}


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = (("id", _UINT), ("pad", _UINT), ("value", _INT), ("rest", _INT * 15))


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = (
        *((name, _UINT) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared_bytes")),
        ("stream", _POINTER),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", _UINT),
    )


_EARLY = _Attribute(id=6, value=1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class MissingGpu(RuntimeError):
    """This machine has no NVIDIA GPU, or not the driver for it: the text says which."""


class CudaError(RuntimeError):
    """The driver refused a call, or a kernel failed; the text is the driver's."""


class Driver:
    """The driver's library. MissingGpu where it is not there, or finds no GPU."""

    def __init__(self, path: str) -> None:
        try:
            library = ctypes.CDLL(path)
        except OSError as reason:
            raise MissingGpu(f"this machine has no driver for NVIDIA GPUs ({reason})") from None
        self._functions = {name: library[name] for name in _FUNCTIONS}
        self._functions |= {name: library[name] for name in _LATER if hasattr(library, name)}
        for name, function in self._functions.items():
            function.argtypes = {**_FUNCTIONS, **_LATER}[name]
        try:
            self._call("cuInit", 0)
            self.devices: int = self._read("cuDeviceGetCount", _INT)
        except CudaError as reason:
            raise MissingGpu(f"this machine has no NVIDIA GPU that works ({reason})") from None
        if not self.devices:
            raise MissingGpu("this machine has no NVIDIA GPU")
        self._contexts: dict[int, int] = {}
        self._discarded: defaultdict[int, deque[int]] = defaultdict(deque)  # modules, by the device's number

    def architecture(self, device: int) -> str:
        """NVIDIA's name of a device's architecture, "sm_90"."""
        handle = self._read("cuDeviceGet", _INT, device)
        major, minor = (self._read("cuDeviceGetAttribute", _INT, which, handle) for which in (_MAJOR, _MINOR))
        return f"sm_{major}{minor}"

    def name(self, device: int) -> str:
        """What a device calls itself."""
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), self._read("cuDeviceGet", _INT, device))
        return text.value.decode(errors="replace")

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """With a device's primary context as that of this thread."""
        context = self._contexts.get(device) or self._retain(device)
        if self._read("cuCtxGetCurrent", _POINTER) == context:
            yield
            return
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._read("cuCtxPopCurrent_v2", _POINTER)

    def _retain(self, device: int) -> int:
        handle = self._read("cuDeviceGet", _INT, device)
        self._contexts[device] = int(self._read("cuDevicePrimaryCtxRetain", _POINTER, handle))
        return self._contexts[device]

    def load(self, device: int, code: bytes) -> int:
        """A module of machine code (cubin, PTX, or both in a fat binary) on a device, whose context is current."""
        self._unload(self._discarded[device])
        return int(self._read("cuModuleLoadData", _POINTER, code))

    def discard(self, device: int, module: int) -> None:
        """Have a module unloaded before the next one is loaded; for who may be anywhere, without a context."""
        self._discarded[device].append(module)

    def _unload(self, modules: deque[int]) -> None:
        unused = len(modules)
        if not unused:
            return
        try:
            self._call("cuCtxSynchronize")  # they may be running
        except CudaError:  # launches are being recorded: later
            return
        with suppress(IndexError):  # another thread may unload, too
            for _ in range(unused):
                self._call("cuModuleUnload", modules.popleft())

    def records(self, stream: int, answer: Any) -> bool:
        """Whether what is launched on a stream is recorded, to be run later. `answer` is memory for an int."""
        return bool(self._functions["cuStreamIsCapturing"](stream, ctypes.addressof(answer)) or answer.value)

    def function(self, module: int, name: str, shared_bytes: int) -> int:
        """A function of a module, which may be launched with so much shared memory."""
        function = int(self._read("cuModuleGetFunction", _POINTER, module, name.encode()))
        if shared_bytes:
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED_BYTES, shared_bytes)
        return function

    def launch(self, function: int, launch: Launch, stream: int, arguments: Any) -> None:
        """Launch a function on a stream; `arguments` is an array of pointers to its arguments."""
        extents = (*launch.grid, *launch.block, launch.shared_bytes, stream)
        if launch.early and "cuLaunchKernelEx" in self._functions:
            config = _Config(*extents, ctypes.pointer(_EARLY), 1)
            self._call("cuLaunchKernelEx", ctypes.byref(config), function, arguments, None)
        else:
            self._call("cuLaunchKernel", function, *extents, arguments, None)

    def encode(self, room: Any, tensor_map: TensorMap, address: int) -> None:
        """Make the map of a tensor at an address. CudaError where the driver knows none."""
        name, arguments = tensor_map.encoding(address)
        if name not in self._functions:
            raise CudaError(f"{name}: this machine's driver for NVIDIA GPUs is older than CUDA 12")
        self._call(name, room, *arguments)

    def allocate(self, size: int, stream: int) -> int:
        """Memory on the current device, in the order of a stream. MemoryError where there is not so much."""
        return int(self._read("cuMemAllocAsync", _POINTER, size, stream))

    def free(self, address: int, stream: int) -> None:
        """Return memory, in the order of a stream."""
        self._call("cuMemFreeAsync", address, stream)

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set memory to zero."""
        self._call("cuMemsetD8Async", address, 0, size, stream)

    def upload(self, address: int, source: int, size: int) -> None:
        """Copy memory of the host to the current device."""
        self._call("cuMemcpyHtoD_v2", address, source, size)

    def download(self, target: int, address: int, size: int) -> None:
        """Copy memory of the current device to the host."""
        self._call("cuMemcpyDtoH_v2", target, address, size)

    def synchronize(self, stream: int) -> None:
        """Wait for all that was launched on a stream."""
        self._call("cuStreamSynchronize", stream)

    def wait(self, stream: int, other: int) -> None:
        """Let what is launched on a stream from now on wait for what was launched on another one."""
        with self.event(timed=False) as event:
            self._call("cuEventRecord", event, other)
            self._call("cuStreamWaitEvent", stream, event, 0)

    @contextmanager
    def event(self, timed: bool = True) -> Iterator[int]:
        """A mark to put on streams."""
        event = int(self._read("cuEventCreate", _POINTER, 0 if timed else _WITHOUT_TIME))
        try:
            yield event
        finally:
            self._call("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        """Put a mark on a stream."""
        self._call("cuEventRecord", event, stream)

    def milliseconds(self, begin: int, end: int) -> float:
        """The time between two marks that have been passed."""
        return float(self._read("cuEventElapsedTime", ctypes.c_float, begin, end))

    def _read(self, name: str, kind: Any, *arguments: Any) -> Any:
        """What a function writes to its first argument."""
        value = kind()
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status:
            text = ctypes.c_char_p()
            self._functions["cuGetErrorString"](status, ctypes.byref(text))
            about = f"{name}: {(text.value or b'unknown error').decode(errors='replace')} ({status})"
            raise MemoryError(about) if status == _OUT_OF_MEMORY else CudaError(about)


@functools.cache
def driver() -> Driver:
    """The driver of this machine. MissingGpu where there is none."""
    return Driver(LIBRARY)


def pointers(values: Sequence[Any]) -> Any:
    """An array of pointers to values of ctypes, which must stay alive."""
    return (_POINTER * len(values))(*(ctypes.addressof(value) for value in values))


def room_for_map() -> Any:
    """Aligned memory for a tensor map."""
    room = (ctypes.c_ubyte * (SIZE + ALIGNMENT))()
    return (ctypes.c_ubyte * SIZE).from_buffer(room, -ctypes.addressof(room) % ALIGNMENT)
