"""The function that XLA calls for our convolutions (handler.c): compiled once, and kept in the cache of kernels."""

from __future__ import annotations

import ctypes
import hashlib
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.common import process
from tvmconvgrad.compiler.linking import compile_library
from tvmconvgrad.files.library_file import library_file

TARGET = "tvmconvgrad_convolution"
"""The name of the custom call."""
_SOURCE = Path(__file__).with_name("handler.c")
_PAGES = _SOURCE.with_name("pages.c")
_HEADER = Path("xla", "ffi", "api", "c_api.h")


class Handler:
    """The loaded function, and the kernels that it knows by their numbers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._expect = library.tvmconvgrad_jax_expect
        self._expect.argtypes = (ctypes.c_int64,)
        self._settle = library.tvmconvgrad_jax_settle
        self._settle.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)
        self._settle.restype = None
        self._count = library.tvmconvgrad_jax_count
        self._count.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        self._count.restype = None

    def expect(self, number: int) -> None:
        """Let calls with a number wait until `settle` is called. MemoryError if there is no memory for it."""
        if self._expect(number):
            raise MemoryError("no memory for the number of a kernel")

    def settle(self, number: int, run: int | None, reason: str | None = None) -> None:
        """Run the function at this address in calls with a number; with a `reason` instead, they fail with that."""
        self._settle(number, run, None if reason is None else reason.encode())

    def count(self, number: int) -> tuple[int, float | None]:
        """How many calls there were, and the milliseconds of the fastest one; None if there were none."""
        calls, fastest = ctypes.c_int64(), ctypes.c_int64()
        self._count(number, ctypes.byref(calls), ctypes.byref(fastest))
        return calls.value, fastest.value / 1e6 if calls.value else None


@process.once  # XLA takes one function of a name
def handler() -> Handler:
    """The handler, registered with XLA. MissingLinker if it has to be compiled and there is no C compiler."""
    library = _library()
    with process.lock, library_file(library) as path:
        loaded = ctypes.CDLL(path)
    capsule = jax.ffi.pycapsule(loaded.tvmconvgrad_jax_call)  # type: ignore[no-untyped-call]
    jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")
    return Handler(loaded)


def _library() -> bytes:
    """The compiled library, from the cache if it is there. The interface is that of the jaxlib which is installed."""
    include = Path(jax.ffi.include_dir())
    texts = [each.read_bytes() for each in (_SOURCE, _PAGES, include / _HEADER)]
    description: dict[str, Any] = {
        "handler": [hashlib.sha256(text).hexdigest() for text in texts],
        "target": f"the C compiler's for {platform.machine()}",
        "system": platform.system(),
    }
    cache = KernelCache()
    found = cache.load(description)
    if found is not None:
        return found.library
    library = compile_library(_SOURCE, include)
    with suppress(OSError):  # it is compiled again in the next process
        cache.store(description, library, {"problem": "what XLA calls for tvmconvgrad.jax", "schedule": "none()"})
    return library
