"""Triples: the architecture, the system and the environment that code is for, by LLVM's names."""

from __future__ import annotations

from tvmconvgrad.machines.host import ARCHITECTURES, host_architecture
from tvmconvgrad.spec.values import show

SYSTEMS = {"linux": "linux", "darwin": "darwin", "macos": "darwin", "ios": "ios", "windows": "windows", "bsd": "bsd"}
_FORMATS = ("coff", "xcoff", "macho", "wasm", "goff", "spirv", "dxcontainer")
"""Formats of object files in a triple. LLVM ends the process if one is not the system's own, so none is accepted."""
_WINDOWS = ("msvc", "gnu", "itanium", "cygnus")
"""The environments of Windows. LLVM ends the process for any other one."""
# Prefixes of CPU names that belong to one architecture. On a machine of another one they imply the triple.
FAMILIES = {
    "cortex-": "aarch64",
    "neoverse-": "aarch64",
    "x86-64": "x86_64",
    "znver": "x86_64",
    "skylake": "x86_64",
}


def architecture_of(triple: str) -> str:
    """LLVM's name of a triple's architecture; ValueError for an unknown one, on which TVM would crash."""
    word = triple.partition("-")[0].lower()
    if word not in ARCHITECTURES:
        expected = f"expected one that begins with {' or '.join(sorted(set(ARCHITECTURES.values())))}"
        raise ValueError(f"target: mtriple {show(triple)} is for an unknown architecture, {expected}")
    return ARCHITECTURES[word]


def check_triple(triple: str) -> None:
    """Raise ValueError for a triple that LLVM cannot compile for: LLVM would end the process."""
    architecture_of(triple)
    words = triple.lower().split("-")[1:]
    for word in words:
        if word.endswith(_FORMATS):
            raise ValueError(f"target: mtriple {show(triple)} names a format of files, {show(word)}, expected none")
    system = next((place for place, word in enumerate(words) if word.startswith("win")), len(words))
    for word in words[system + 1 :]:
        if word.rstrip("0123456789.") not in _WINDOWS:
            expected = f"expected one of {', '.join(_WINDOWS)}"
            raise ValueError(f"target: mtriple {show(triple)} has an environment that Windows has not, {expected}")


def linux_triple(architecture: str) -> str:
    """The usual triple of an architecture."""
    return f"{architecture}-linux-gnu"


def foreign_triple(mcpu: str) -> str | None:
    """The triple of a CPU whose name belongs to another architecture than this machine's; None for other CPUs."""
    for beginning, architecture in FAMILIES.items():
        if mcpu.startswith(beginning) and architecture != host_architecture():
            return linux_triple(architecture)
    return None
