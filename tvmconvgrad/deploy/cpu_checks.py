"""How a C program asks the CPU for features, and in which order the targets of a bundle are tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvmconvgrad.build.cpu_features import SYSTEM_TO_LLVM
from tvmconvgrad.targets import Target

# Linux's bits of AArch64: AT_HWCAP, then AT_HWCAP2 (asm/hwcap.h, which may be older than the compiler)
_HWCAP = {
    "asimd": 1,
    "atomics": 8,
    "asimdhp": 10,
    "asimdrdm": 12,
    "fcma": 14,
    "asimddp": 20,
    "sve": 22,
    "asimdfhm": 23,
}
_HWCAP2 = {"sve2": 1, "i8mm": 13, "bf16": 14, "cssc": 34, "mops": 43}


def check_in_c(target: Target, features: Collection[str], architecture: str) -> str:
    """A C expression that is true where the CPU has features, which are in the operating system's words.

    Raises ValueError for a feature that a program cannot ask for.
    """
    checks = [_one(target, feature, architecture) for feature in sorted(features)]
    return " && ".join(checks) if checks else "1"


def best_first(requires: Mapping[Target, Collection[str]]) -> list[Target]:
    """Targets that need more features before those that need fewer; equal ones in the given order."""
    return sorted(requires, key=lambda target: -len(requires[target]))


def _one(target: Target, feature: str, architecture: str) -> str:
    if architecture == "x86_64" and feature in SYSTEM_TO_LLVM:
        return f'__builtin_cpu_supports("{SYSTEM_TO_LLVM[feature]}")'  # the C compilers use LLVM's names
    if architecture == "aarch64":
        for kind, bits in (("AT_HWCAP", _HWCAP), ("AT_HWCAP2", _HWCAP2)):
            if feature in bits:
                return f"(getauxval({kind}) >> {bits[feature]} & 1)"
    raise ValueError(f"target: {str(target)!r} needs {feature}, and a program has no way to ask the CPU for it")
