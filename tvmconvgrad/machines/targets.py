"""Targets: what code is generated for. Parsed and resolved without TVM, so that a cached kernel needs no compiler."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmconvgrad.common import process
from tvmconvgrad.machines import cpus, files
from tvmconvgrad.machines.backends import BACKENDS, Backend
from tvmconvgrad.machines.host import added_features, closest_generation, host_architecture, host_cpu
from tvmconvgrad.machines.triples import SYSTEMS, architecture_of, check_triple, foreign_triple
from tvmconvgrad.spec.values import nearest, plain, show

DEFAULT = "llvm -mcpu=native"
_OWN = {"sm_90": "sm_90a"}
"""GPU architectures whose own instructions no later one has, and the name of the variant that has them."""
ALGORITHMS = DIRECT, AUTO = "direct", "auto"
"""oneDNN's names: "direct" computes every product; "auto" may use Winograd's algorithm where it should be faster."""
FPMATH_MODES = STRICT, TF32 = "strict", "tf32"
"""oneDNN's names: "strict" multiplies f32 as it is; "tf32" may round it to TF32 first, 11 of its 24 significant
bits."""


@dataclass(frozen=True)
class Target:
    """A resolved target; `str` gives the command line's spelling, `to_dict` TVM's. `arch` is a GPU's, "sm_90".

    `mtune` names the CPU whose cache sizes and costs schedules are planned with, where that is not `mcpu`, which names
    the instructions (as GCC's and Clang's options of these names do).
    `algorithm` is "direct" or "auto": then kernels may take Winograd's algorithm (te/winograd). `fpmath_mode` is
    "strict" or "tf32": then kernels for f32 may round both inputs to TF32, and multiply on a GPU's tensor cores.
    """

    kind: str = "llvm"
    mcpu: str | None = None
    mattr: tuple[str, ...] = ()
    mtune: str | None = None
    mtriple: str | None = None
    arch: str | None = None
    algorithm: str = DIRECT
    fpmath_mode: str = STRICT

    def __str__(self) -> str:
        options = {**self.to_dict(), "mattr": ",".join(self.mattr)}
        options.pop("kind")
        options["mtune"] = self.mtune
        if self.algorithm != DIRECT:
            options["algorithm"] = self.algorithm
        if self.fpmath_mode != STRICT:
            options["fpmath_mode"] = self.fpmath_mode
        return " ".join([self.kind, *(f"-{name}={value}" for name, value in options.items() if value)])

    @property
    def has_tile_registers(self) -> bool:
        """Whether code may use AMX's tile registers: only if `mattr` says so, since the process must ask for them, too.
        `native` says so where the system agrees."""
        return "+amx-bf16" in self.mattr

    @property
    def backend(self) -> Backend:
        """What its kind supplies."""
        return BACKENDS[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """The target as TVM's dict, without `mtune`, `algorithm` and `fpmath_mode`, which TVM does not know."""
        options = {"mcpu": self.mcpu, "mattr": list(self.mattr), "mtriple": self.mtriple, "arch": self.arch}
        return {"kind": self.kind, **{name: value for name, value in options.items() if value}}

    def multiplied(self, dtype: str) -> str:
        """The type in which numbers of `dtype` are multiplied: "tf32" for "f32" if `fpmath_mode` is "tf32"."""
        return TF32 if dtype == "f32" and self.fpmath_mode == TF32 else dtype


def parse_target(target: str | Mapping[str, Any] | Target | None = None) -> Target:
    """A target from "llvm -mcpu=znver3", "cuda -arch=sm_90", TVM's dict, or None for this machine's CPU.

    `mcpu` takes LLVM's names; "native" is this machine's CPU, with the features that its name leaves out. `mtune` is
    the CPU that schedules are planned for, if it is another one. A well-known CPU of another architecture
    ("cortex-a76") needs no `mtriple`: it is Linux's. `algorithm` is "direct" or "auto".
    "cuda" without `arch` is for the first GPU of this machine; its `fpmath_mode` is "strict" or "tf32". Raises
    ValueError for an unknown kind or option, or where there is no such GPU, and TypeError for a value of another type.
    """
    if isinstance(target, Target):
        return target
    if target is None:
        target = DEFAULT
    if isinstance(target, str):
        return _resolved(target, _split(plain(target)))
    if isinstance(target, Mapping):
        return _resolved(target, dict(target))
    raise TypeError(f'target: {show(target)} is neither a string such as "{DEFAULT}" nor a dict')


def _split(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(text)
    except ValueError as reason:
        raise ValueError(f"target: {show(text)} cannot be read: {reason}") from None
    if not words:
        raise ValueError(f'target: {text!r} is empty, expected for example "{DEFAULT}"')
    options: dict[str, Any] = {"kind": words[0]}
    for word in words[1:]:
        match = re.fullmatch(r"-([a-z_]+)=(\S+)", word)
        if match is None:
            raise ValueError(f"target: {show(word)} in {show(text)} is no option, expected for example -mcpu=native")
        if match[1] in options:
            raise ValueError(f"target: -{match[1]} is given twice in {show(text)}")
        options[match[1]] = match[2]
    return options


def _resolved(given: object, options: dict[str, Any]) -> Target:
    kind = options.pop("kind", "llvm")
    kind = plain(kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in BACKENDS:
        expected = f"expected {' or '.join(BACKENDS)}"
        raise ValueError(
            f"target: kind {show(kind)} in {show(given)} is not supported{nearest(kind, BACKENDS)}, {expected}"
        )
    known = BACKENDS[kind].options
    for name in options:
        if name not in known:
            expected = f"{nearest(name, known)}, expected one of {', '.join(known)}"
            raise ValueError(f"target: option {show(name)} in {show(given)} is unknown{expected}")
    parsed: Target = BACKENDS[kind].get("parse")(given, options)
    return parsed


def parse_gpu(given: object, options: Mapping[str, Any]) -> Target:
    """A "cuda" target from its options."""
    mode = _one_of("fpmath_mode", options, FPMATH_MODES)
    return Target("cuda", arch=_gpu_architecture(given, _word("arch", options.get("arch"))), fpmath_mode=mode)


def parse_cpu(given: object, options: Mapping[str, Any]) -> Target:
    """An "llvm" target from its options."""
    algorithm = _one_of("algorithm", options, ALGORITHMS)
    mcpu, mtune, mtriple = (_word(name, options.get(name)) for name in ("mcpu", "mtune", "mtriple"))
    if mtune == "native":
        mtune = closest_generation()
    elif mtune is not None:
        _check_tune(mtune)
    if mtriple is not None:
        check_triple(mtriple)
    elif mcpu is not None:
        mtriple = foreign_triple(mcpu)
    features = _features(options.get("mattr", ()))
    if mcpu == "native":
        added = [feature for feature in added_features() if feature[1:] not in {one[1:] for one in features}]
        mcpu, features = host_cpu(), (*added, *features)
        mtune = mtune or closest_generation()
    return Target("llvm", mcpu, features, _tune(mcpu, mtune), mtriple, algorithm=algorithm)


def _check_tune(mtune: str) -> None:
    """ValueError for a CPU that has no machine file."""
    if files.find(cpus.FOLDER, mtune) is None:
        known = files.names(cpus.FOLDER)
        expected = f"expected one of {', '.join(known)}"
        raise ValueError(f"target: mtune {show(mtune)} has no machine file{nearest(mtune, known)}, {expected}")


def _tune(mcpu: str | None, mtune: str | None) -> str | None:
    """`mtune`, if it has a machine file and that is not `mcpu`'s."""
    file = files.find(cpus.FOLDER, mtune)
    return mtune if file is not None and file != files.find(cpus.FOLDER, mcpu) else None


def _gpu_architecture(given: object, arch: str | None) -> str:
    """A GPU's architecture by NVIDIA's name; "native" or None is that of this machine's first GPU. ValueError if there
    is none."""
    if arch is not None and arch != "native":
        if re.fullmatch(r"sm_[1-9][0-9]{1,2}[af]?", arch) is None:
            raise ValueError(f"target: arch is {show(arch)}, expected NVIDIA's name of an architecture such as sm_90")
        return arch
    with process.lock:
        from tvmconvgrad.nvidia import driver  # only where one is asked for

    try:
        return own_architecture(driver.driver().architecture(0))
    except driver.MissingGpu as reason:
        expected = 'expected for example "cuda -arch=sm_90"'
        raise ValueError(f"target: {show(given)} names no GPU's architecture, and {reason}: {expected}") from None


def own_architecture(there: str) -> str:
    """The architecture to compile for on a GPU of architecture `there`: the variant with instructions of its own."""
    return _OWN.get(there, there)


def _one_of(name: str, options: Mapping[str, Any], words: Sequence[str]) -> str:
    """An option's value, one of `words`; the first of them if it is not given."""
    found = _word(name, options.get(name)) or words[0]
    if found not in words:
        raise ValueError(f"target: {name} is {show(found)}{nearest(found, words)}, expected {' or '.join(words)}")
    return found


def _word(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"target: {name} is {show(value)} of type {type(value).__name__}, expected a string")
    value = plain(value)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", value):
        raise ValueError(f"target: {name} is {show(value)}, expected letters, digits and ._+-")
    return value


def _features(mattr: object) -> tuple[str, ...]:
    features = plain(mattr).split(",") if isinstance(mattr, str) else mattr
    if not isinstance(features, (list, tuple)):
        raise TypeError(f"target: mattr is {show(mattr)} of type {type(mattr).__name__}, expected a string or a list")
    for feature in features:
        if not (isinstance(feature, str) and re.fullmatch(r"[+-][A-Za-z0-9][A-Za-z0-9._-]*", feature)):
            raise ValueError(f"target: feature {show(feature)} of mattr is not of the form +name or -name")
    return tuple(map(plain, features))


def target_architecture(target: Target) -> str:
    """LLVM's name of the architecture that a target's code is for."""
    return architecture_of(target.mtriple) if target.mtriple else host_architecture()


def target_system(target: Target) -> str:
    """The operating system that a target's code is for, "linux" for example."""
    triple = (target.mtriple or "").lower()
    return next((name for word, name in SYSTEMS.items() if word in triple), platform.system().lower())


def check_host(target: Target) -> None:
    """Raise ValueError if a target is of another architecture or operating system, so its code cannot run here."""
    if target.mtriple is None:
        return
    system, named = platform.system().lower(), target_system(target)
    if (target_architecture(target), named) != (host_architecture(), system):
        raise ValueError(
            f"target: {str(target)!r} is for {target_architecture(target)} and {named}, and this machine is "
            f"{host_architecture()} with {system}: its code can be generated here, but not run"
        )
