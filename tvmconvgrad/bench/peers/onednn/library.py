"""libdnnl with one CPU engine and stream, and what belongs to it: handles, memory, errors."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tvmconvgrad.bench.job import Array
from tvmconvgrad.spec.values import Shape

MAX_AXES = 12
Dims = ctypes.c_int64 * MAX_AXES
DTYPES = {"f16": 1, "bf16": 2, "f32": 3}
# dnnl_status_t in its order
STATUS = (
    "success",
    "out_of_memory",
    "invalid_arguments",
    "unimplemented",
    "last_impl_reached",
    "runtime_error",
    "not_required",
    "invalid_graph",
    "invalid_graph_op",
    "invalid_shape",
    "invalid_data_type",
)
_U8, _CPU, _IN_ORDER = 6, 1, 1
_ALLOCATE = ctypes.c_void_p(-1)
# what libdnnl links to; preloaded, they need no LD_LIBRARY_PATH
_RUNTIME = (
    "libtbb.so.12",
    "libintlc.so.5",
    "libimf.so",
    "libsvml.so",
    "libumf.so.1",
    "libur_loader.so.0",
    "libsycl.so.9",
)


class OneDNNError(RuntimeError):
    """oneDNN refused; `status` is its word for why."""

    def __init__(self, stage: str, status: str) -> None:
        self.stage, self.status = stage, status
        super().__init__(f"{status} ({stage})")


def folder() -> Path | None:
    """Where the wheel has put its libraries; None where it is not installed."""
    try:
        files = importlib.metadata.distribution("onednn").files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve().parent for file in files if file.name == "libdnnl.so.3")
    return next((path for path in found if (path / "libdnnl.so.3").exists()), None)


def installed() -> bool:
    """Whether there is a oneDNN to load."""
    return folder() is not None


def version() -> str:
    """The library's own version."""

    class Version(ctypes.Structure):
        _fields_ = [(name, ctypes.c_int) for name in ("major", "minor", "patch")]

    query = library().so.dnnl_version
    query.restype = ctypes.POINTER(Version)
    found = query().contents
    return f"{found.major}.{found.minor}.{found.patch}"


class Library:
    """The loaded library. A process loads it once; it takes a thread for each CPU that the process may use."""

    def __init__(self) -> None:
        home = folder()
        if home is None:
            raise OneDNNError("load", "not installed")
        # the runtime finds its CPU device only through this; the device is Intel's, and works on others' CPUs
        os.environ.setdefault("OCL_ICD_FILENAMES", str(home / "libintelocl.so"))
        for name in _RUNTIME:
            with suppress(OSError):
                ctypes.CDLL(str(home / name), ctypes.RTLD_GLOBAL)
        self.so = ctypes.CDLL(str(home / "libdnnl.so.3"), ctypes.RTLD_GLOBAL)
        self.so.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.so.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self.engine, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("engine_create", ctypes.byref(self.engine), _CPU, ctypes.c_size_t(0))
        self.call("stream_create", ctypes.byref(self.stream), self.engine, _IN_ORDER)

    def call(self, name: str, *args: Any) -> None:
        """Call dnnl_<name>; OneDNNError unless it succeeds."""
        status = getattr(self.so, "dnnl_" + name)(*args)
        if status:
            raise OneDNNError(name, STATUS[status] if 0 <= status < len(STATUS) else f"status {status}")

    def wait(self) -> None:
        """Until all that was submitted is done."""
        self.call("stream_wait", self.stream)


@functools.cache
def library() -> Library:
    """This process's oneDNN. OneDNNError where it cannot be loaded."""
    return Library()


class Handles:
    """What one gradient has made of oneDNN's objects, in order; `release` gives them all back."""

    def __init__(self) -> None:
        self._made: list[tuple[str, ctypes.c_void_p]] = []

    def new(self, name: str, *args: Any) -> ctypes.c_void_p:
        """The handle that dnnl_<name>(&handle, ...) makes."""
        handle = ctypes.c_void_p()
        library().call(name, ctypes.byref(handle), *args)
        kind = name.partition("_create")[0]
        return self.keep("primitive_desc_destroy" if kind.endswith("primitive_desc") else f"{kind}_destroy", handle)

    def keep(self, destroy: str, handle: ctypes.c_void_p) -> ctypes.c_void_p:
        """Remember how a handle is given back."""
        self._made.append((destroy, handle))
        return handle

    def release(self) -> None:
        """Destroy everything, the latest first."""
        while self._made:
            destroy, handle = self._made.pop()
            library().call(destroy, handle)

    def memory(self, count: int) -> ctypes.c_void_p:
        """The address of `count` bytes that the engine can use."""
        form = self.new("memory_desc_create_with_strides", 1, Dims(max(count, 1)), _U8, Dims(1))
        owner = self.new("memory_create", form, library().engine, _ALLOCATE)
        address = ctypes.c_void_p()
        library().call("memory_get_data_handle", owner, ctypes.byref(address))
        return address

    def upload(self, array: Array) -> ctypes.c_void_p:
        """The address of a copy of a dense array."""
        address = self.memory(array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return address

    def allocated(self, form: ctypes.c_void_p) -> ctypes.c_void_p:
        """A memory object of its own for a descriptor."""
        return self.new("memory_create", form, library().engine, _ALLOCATE)


def download(address: ctypes.c_void_p, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """A dense array's copy from the engine's memory."""
    array: Array = np.empty(shape, dtype)
    ctypes.memmove(array.ctypes.data, address, array.nbytes)
    return array
