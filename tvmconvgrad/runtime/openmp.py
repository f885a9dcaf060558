"""The OpenMP runtime that PyTorch has loaded. Kernels that PyTorch calls run on its threads.

After a parallel region OpenMP's threads spin for a while. A second pool of threads would compete with them for the
CPUs.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

_TORCH_LIBRARY = "libtorch_cpu.so"
_FUNCTIONS = {
    "parallel": "GOMP_parallel",
    "thread_num": "omp_get_thread_num",
    "num_threads": "omp_get_num_threads",
    "in_parallel": "omp_in_parallel",
}


class OpenMP(ctypes.Structure):
    """The addresses of a runtime's functions: the struct OpenMP of csrc/openmp.c, field by field.

    A forked child has none of the runtime's threads, but GCC's runtime would wait for them. So `parallel` is NULL in
    the child, and kernels run on the threads of their own library.
    """

    _fields_ = tuple((name, ctypes.c_void_p) for name in _FUNCTIONS)


@functools.cache
def openmp_of_torch(torch: Any) -> OpenMP | None:
    """The OpenMP runtime of the module `torch`; None if it was built without OpenMP, or if it cannot be found."""
    if not torch.backends.openmp.is_available():
        return None
    for library in (None, _TORCH_LIBRARY):  # the loader, too, searches the global scope before a library's own
        functions = _functions(library)
        if functions is not None:
            found = OpenMP(**functions)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=functools.partial(setattr, found, "parallel", None))
            return found
    return None


def _functions(name: str | None) -> dict[str, int] | None:
    """The functions' addresses in a library that is loaded, or in those that it needs; None: in the global scope."""
    try:
        library = ctypes.CDLL(name, os.RTLD_LAZY | (os.RTLD_NOLOAD if name else 0))
        return {field: ctypes.cast(library[symbol], ctypes.c_void_p).value or 0 for field, symbol in _FUNCTIONS.items()}
    except (AttributeError, OSError):
        return None
