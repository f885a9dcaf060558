"""The OpenMP runtime that PyTorch has loaded: on its threads the kernels run that PyTorch calls.

Its threads look for work for a while after each parallel region, on the CPUs that threads of another pool would need.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

_TORCH_LIBRARY = "libtorch_cpu.so"
_FUNCTIONS = {
    "parallel": "GOMP_parallel",
    "place": "omp_get_thread_num",
    "size": "omp_get_num_threads",
    "is_inside": "omp_in_parallel",
}


class OpenMP(ctypes.Structure):
    """OpenMP of compiling/openmp.c: the addresses of a runtime's functions.

    A forked child has none of the runtime's threads, and GCC's runtime would wait for them: there kernels run on the
    threads of their own library.
    """

    _fields_ = tuple((name, ctypes.c_void_p) for name in _FUNCTIONS)


@functools.cache
def openmp_of_torch(torch: Any) -> OpenMP | None:
    """The runtime whose threads the module `torch` uses; None where it uses none, or it cannot be told which."""
    if not torch.backends.openmp.is_available():
        return None
    for library in (None, _TORCH_LIBRARY):  # in the order in which the system's loader has looked for them
        functions = _functions(library)
        if functions is not None:
            found = OpenMP(**functions)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=functools.partial(setattr, found, "parallel", None))
            return found
    return None


def _functions(name: str | None) -> dict[str, int] | None:
    """The functions that a library of this process, or one that it needs, has; None: the process itself."""
    try:
        library = ctypes.CDLL(name, os.RTLD_LAZY | (os.RTLD_NOLOAD if name else 0))
        return {field: ctypes.cast(library[symbol], ctypes.c_void_p).value or 0 for field, symbol in _FUNCTIONS.items()}
    except (AttributeError, OSError):
        return None
