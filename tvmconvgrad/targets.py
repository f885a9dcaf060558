"""Targets: what code is generated for. Parsed and resolved without TVM, so that a cached kernel needs no compiler."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import archspec.cpu

DEFAULT = "llvm -mcpu=native"
KINDS = ("llvm",)
OPTIONS = ("mcpu", "mattr", "mtriple")
_NEWEST_CLANG = "99.0"


@dataclass(frozen=True)
class Target:
    """A resolved target; `str` gives the command line's spelling, `to_dict` TVM's."""

    kind: str = "llvm"
    mcpu: str | None = None
    mattr: tuple[str, ...] = ()
    mtriple: str | None = None

    def __str__(self) -> str:
        options = {"mcpu": self.mcpu, "mattr": ",".join(self.mattr), "mtriple": self.mtriple}
        return " ".join([self.kind, *(f"-{name}={value}" for name, value in options.items() if value)])

    def to_dict(self) -> dict[str, Any]:
        """The only form that TVM takes."""
        options = {"mcpu": self.mcpu, "mattr": list(self.mattr), "mtriple": self.mtriple}
        return {"kind": self.kind, **{name: value for name, value in options.items() if value}}


def parse_target(target: str | Mapping[str, Any] | Target | None = None) -> Target:
    """A target from "llvm -mcpu=znver3", TVM's dict, or None for this machine's CPU.

    `mcpu` takes LLVM's names; "native" is this machine's CPU. Raises ValueError for an unknown kind or option, and
    TypeError for a value of another type.
    """
    if isinstance(target, Target):
        return target
    if target is None:
        target = DEFAULT
    if isinstance(target, str):
        return _resolved(target, _split(target))
    if isinstance(target, Mapping):
        return _resolved(target, dict(target))
    raise TypeError(f'target: {target!r} is neither a string such as "{DEFAULT}" nor a dict')


def _split(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as reason:
        raise ValueError(f"target: {text!r} cannot be read: {reason}") from None
    if not words:
        raise ValueError(f'target: {text!r} is empty, expected for example "{DEFAULT}"')
    options: dict[str, Any] = {"kind": words[0]}
    for word in words[1:]:
        match = re.fullmatch(r"-([a-z_]+)=(\S+)", word)
        if match is None:
            raise ValueError(f"target: {word!r} in {text!r} is no option, expected for example -mcpu=native")
        options[match[1]] = match[2]
    return options


def _resolved(given: object, options: dict[str, Any]) -> Target:
    kind = options.pop("kind", "llvm")
    if kind not in KINDS:
        raise ValueError(f"target: kind {kind!r} in {given!r} is not supported, expected {' or '.join(KINDS)}")
    for name, value in options.items():
        if name not in OPTIONS:
            raise ValueError(f"target: option {name!r} in {given!r} is unknown, expected one of {', '.join(OPTIONS)}")
        if not isinstance(value, (str, list, tuple)) or (name != "mattr" and not isinstance(value, str)):
            raise TypeError(f"target: option {name} is {value!r}, expected text")
    mattr = options.get("mattr", ())
    features = mattr.split(",") if isinstance(mattr, str) else mattr
    for feature in features:
        if not (isinstance(feature, str) and re.fullmatch(r"[+-][A-Za-z0-9._-]+", feature)):
            raise ValueError(f"target: feature {feature!r} of mattr is not of the form +name or -name")
    mcpu = options.get("mcpu")
    return Target(kind, host_cpu() if mcpu == "native" else mcpu, tuple(features), options.get("mtriple"))


@functools.cache
def host_cpu() -> str:
    """LLVM's name of this machine's CPU, or of the newest generation that has no more than this CPU has."""
    cpu = archspec.cpu.host()
    for candidate in [cpu, *cpu.ancestors]:
        try:
            flags = candidate.optimization_flags("clang", _NEWEST_CLANG)
        except archspec.cpu.UnsupportedMicroarchitecture:
            continue
        match = re.search(r"-m(?:arch|cpu)=([A-Za-z0-9-]+)(?:\s|$)", flags)
        if match:
            return match[1]
    return str(cpu.name).replace("_", "-")


@functools.cache
def host_features() -> frozenset[str]:
    """What this machine's CPU can do, in the operating system's words ("avx2", "sse4_1", ...)."""
    return frozenset(archspec.cpu.detect.detected_info().features)
