"""Whether this process may use AMX's tile registers: Linux gives them only to processes that ask (arch_prctl(2)).

The permission is the process's, for all of its threads and its forks. Linux refuses it where a thread has a signal
stack that is too small for the tiles, and a sandbox may refuse it.
"""

from __future__ import annotations

import ctypes
import functools
import platform

FEATURES = frozenset({"amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "amx_complex"})
"""The features that need it, in the operating system's words."""

_ARCH_PRCTL = 158  # the number of the system call
_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 0x1023, 18  # asm/prctl.h, asm/fpu/types.h


@functools.cache
def may_use_tiles() -> bool:
    """Ask the system for this process, once. False as well where there is no such CPU or no such system."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    system = ctypes.CDLL(None)
    return bool(system.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)
