"""How a C program asks the CPU for features, and in which order the targets of a bundle are tried."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvmconvgrad.machines.targets import Target
from tvmconvgrad.machines.tile_permission import FEATURES

# cpuid's leaf and subleaf, the register, and its bits of features in the operating system's words
_CPUID: dict[tuple[int, int, str], dict[str, int]] = {
    (1, 0, "ECX"): {
        "pni": 0,
        "ssse3": 9,
        "fma": 12,
        "sse4_1": 19,
        "sse4_2": 20,
        "movbe": 22,
        "popcnt": 23,
        "avx": 28,
        "f16c": 29,
    },
    (7, 0, "EBX"): {
        "bmi1": 3,
        "avx2": 5,
        "bmi2": 8,
        "avx512f": 16,
        "avx512dq": 17,
        "adx": 19,
        "avx512ifma": 21,
        "avx512cd": 28,
        "avx512bw": 30,
        "avx512vl": 31,
    },
    (7, 0, "ECX"): {
        "avx512vbmi": 1,
        "avx512_vbmi2": 6,
        "gfni": 8,
        "avx512_vnni": 11,
        "avx512_bitalg": 12,
        "avx512_vpopcntdq": 14,
    },
    (7, 0, "EDX"): {"amx_bf16": 22, "avx512_fp16": 23, "amx_tile": 24, "amx_int8": 25},
    (7, 1, "EAX"): {"avx_vnni": 4, "avx512_bf16": 5, "amx_fp16": 21, "avx_ifma": 23},
    (7, 1, "EDX"): {"avx_vnni_int8": 4, "avx_ne_convert": 5, "amx_complex": 8, "avx_vnni_int16": 10},
    (0x80000001, 0, "ECX"): {"abm": 5, "sse4a": 6, "xop": 11, "fma4": 16, "tbm": 21},
}
_NEEDS_AVX = ("avx", "fma", "f16c", "xop")  # how features begin whose registers the system must save
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

    It uses cpu.c on x86-64, and getauxval on AArch64. Raises ValueError for a feature that no program can ask for.
    """
    checks = [_check(feature, architecture) for feature in sorted(features)]
    for feature, check in zip(sorted(features), checks):
        if check is None:
            raise ValueError(f"target: {str(target)!r} needs {feature}, and a program has no way to ask the CPU for it")
    return " && ".join([*_states(features, architecture), *map(str, checks)]) or "1"


def best_first(requires: Mapping[Target, Collection[str]]) -> list[Target]:
    """Targets that need more features before those that need fewer; equal ones in the given order."""
    return sorted(requires, key=lambda target: -len(requires[target]))


def _check(feature: str, architecture: str) -> str | None:
    if architecture == "aarch64":
        for kind, bits in (("AT_HWCAP", _HWCAP), ("AT_HWCAP2", _HWCAP2)):
            if feature in bits:
                return f"(getauxval({kind}) >> {bits[feature]} & 1)"
        return None
    for (leaf, subleaf, word), bits in _CPUID.items():
        if feature in bits:
            return f"has({leaf:#x}, {subleaf}, {word}, {bits[feature]})"
    return None


def _states(features: Collection[str], architecture: str) -> list[str]:
    """What asks the operating system for the registers of features."""
    if architecture != "x86_64":
        return []
    checks = []
    if any(feature.startswith(_NEEDS_AVX) for feature in features):
        wide = any(feature.startswith("avx512") for feature in features)
        checks.append("keeps(AVX512_STATE)" if wide else "keeps(AVX_STATE)")
    return checks + ["may_use_tiles()"] * (not FEATURES.isdisjoint(features))
