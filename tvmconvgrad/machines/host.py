"""This machine's CPU: its architecture, the generation that LLVM knows it by, and its features."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tvmconvgrad.common import process
from tvmconvgrad.machines.tile_permission import FEATURES, may_use_tiles

ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_NEWEST_CLANG = "99.0"
_ADDED = {"avx512_bf16": "+avx512bf16", "amx_bf16": "+amx-bf16", "bf16": "+bf16"}
"""Features that kernels use, and that a CPU may have in addition to those of the generation that names it."""


def host_architecture() -> str:
    """LLVM's name of this machine's architecture."""
    return ARCHITECTURES.get(platform.machine().lower(), platform.machine())


def host_cpu() -> str:
    """LLVM's name of this machine's CPU, or of the newest generation whose features this CPU has all."""
    name, _ = named_generation()
    return name


def added_features() -> list[str]:
    """The features that kernels use and this machine's CPU has, but `host_cpu` does not imply. AMX is among them where
    the system lets this process use its tile registers, which no name of a CPU implies."""
    _, known = named_generation()
    added = [name for name in _ADDED if name in host_features() - (known - FEATURES)]
    return [_ADDED[name] for name in added if name not in FEATURES or may_use_tiles()]


@functools.cache
def named_generation() -> tuple[str, frozenset[str]]:
    """`host_cpu`, and the features that the name implies. If archspec is missing, the compiler's interpreter is
    asked."""
    try:
        with process.lock:
            import archspec.cpu  # only to name the CPU: bundled kernels go without it
    except ModuleNotFoundError:
        from tvmconvgrad.workers import environment

        if environment.named() is None:
            raise
        name, features, _ = environment.host_cpu()
        return name, frozenset(features)

    cpu = archspec.cpu.host()
    for candidate in [cpu, *cpu.ancestors]:
        llvm_name = _llvm_name(candidate)
        if llvm_name:
            return llvm_name, frozenset(candidate.features)
    return str(cpu.name).replace("_", "-"), frozenset(cpu.features)


@functools.cache
def closest_generation() -> str:
    """LLVM's name of the generation whose features are the most like this CPU's, among its vendor's.

    A virtual machine may hide features of its CPU. `named_generation` is an older one then, which has none that are
    hidden.
    """
    try:
        with process.lock:
            import archspec.cpu
    except ModuleNotFoundError:
        from tvmconvgrad.workers import environment

        _, _, closest = environment.host_cpu()
        return closest
    named, vendor = host_cpu(), archspec.cpu.detect.detected_info().vendor
    known = [cpu for cpu in archspec.cpu.TARGETS.values() if cpu.vendor == vendor]
    among = host_features() & frozenset[str]().union(*(cpu.features for cpu in known))
    apart = {name: len(among ^ cpu.features) for cpu in known if (name := _llvm_name(cpu))}
    return min(apart, key=lambda name: (apart[name], name != named), default=named)


def _llvm_name(generation: Any) -> str | None:
    """LLVM's name of one of archspec's generations."""
    with process.lock:
        import archspec.cpu

    try:
        flags = generation.optimization_flags("clang", _NEWEST_CLANG)
    except archspec.cpu.UnsupportedMicroarchitecture:
        return None
    match = re.search(r"-m(?:arch|cpu)=([A-Za-z0-9-]+)(?:\s|$)", flags)
    return match[1] if match else None


@functools.cache
def host_features() -> frozenset[str]:
    """The features of this machine's CPU, by the operating system's names ("avx2", "sse4_1", ...)."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(words.split())
    with process.lock:
        import archspec.cpu

    return frozenset(archspec.cpu.detect.detected_info().features)


def missing_features(required: Iterable[str]) -> list[str]:
    """Those of the required features that this process cannot use. Where tile registers are among them, the system is
    asked for these."""
    missing = set(required) - host_features()
    tiles = FEATURES.intersection(required)
    return sorted(missing | tiles if tiles and not may_use_tiles() else missing)
