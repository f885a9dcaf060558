"""CPU features that LLVM's code generation uses, by the names that LLVM and the operating system give them."""

from __future__ import annotations

from collections.abc import Iterable

_SAME = (
    "ssse3 popcnt avx avx2 fma f16c bmi2 movbe adx gfni avx512f avx512cd avx512bw avx512dq avx512vl avx512vbmi "
    "avx512ifma sse4a fma4 xop tbm sve sve2 bf16 i8mm mops cssc faminmax"
)
_APX = "egpr ndd ppx push2pop2 ccmp cf nf zu jmpabs"
_LLVM_TO_SYSTEM = {name: name for name in _SAME.split()} | {
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "bmi": "bmi1",
    "lzcnt": "abm",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512fp16": "avx512_fp16",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "amx-fp16": "amx_fp16",
    "amx-complex": "amx_complex",
    "avxvnni": "avx_vnni",
    "avxifma": "avx_ifma",
    "avxneconvert": "avx_ne_convert",
    "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16",
    "avx10.2": "avx10_2",
    "neon": "asimd",
    "fullfp16": "asimdhp",
    "fp16fml": "asimdfhm",
    "rdm": "asimdrdm",
    "complxnum": "fcma",
    "dotprod": "asimddp",
    "lse": "atomics",
    **dict.fromkeys(_APX.split(), "apx"),
}
_NEEDED = {"x86_64": ("64bit", "64bit-mode", "sse", "sse2"), "aarch64": ()}
_FOREIGN = {
    "x86_64": ("16bit-mode", "32bit-mode", "x32", "soft-float"),
    "aarch64": tuple(f"reserve-x{number}" for number in range(1, 8)),
}
"""The features that code for an architecture must have, and those that it must not have, to follow the C calling
convention. For some of these LLVM ends the process; for the others it makes code that crashes."""


def in_system_words(llvm_features: Iterable[str]) -> set[str]:
    """The operating system's names of those of LLVM's features that add instructions; tuning hints are left out."""
    return {_LLVM_TO_SYSTEM[name] for name in llvm_features if name in _LLVM_TO_SYSTEM}


def foreign_to(architecture: str, llvm_features: Iterable[str]) -> str:
    """Why no function of an architecture can be compiled with a CPU's features, in words; "" if it can."""
    features = set(llvm_features)
    for name in _NEEDED.get(architecture, ()):
        if name not in features:
            return f"has no {name}, which code for {architecture} needs"
    for name in _FOREIGN.get(architecture, ()):
        if name in features:
            return f"has {name}, with which no function for {architecture} can be called"
    return ""
