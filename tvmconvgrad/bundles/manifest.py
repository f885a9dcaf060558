"""manifest.json: what a bundle holds, and how it is read back. Pure Python; whatever is in the file may be wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvmconvgrad import spec
from tvmconvgrad.bundles import fields
from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.cache.entry import canonical
from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.epilogue import PLAIN
from tvmconvgrad.spec.values import Shape, show

FORMAT = 5
"""The version of the file's format: a reader takes no other one."""
CUDA = "cuda"
"""The architecture of a bundle for NVIDIA GPUs, whatever the machine around them."""
FILE = "manifest.json"
_LONGEST = 200  # characters of a message


@dataclass(frozen=True)
class File:
    """A file of the bundle: its length in bytes, and the SHA-256 of its content in hexadecimal."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundleTarget:
    """A target in the spelling of the command line, and what its code needs of a CPU, in the system's words."""

    target: str
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """A kernel's code for one target: which schedule made it, and with which numbers; where these come from ("default":
    the schedule's own); the file that it lies in; the SHA-256 of the object file, or of that file, which for a GPU is
    the kernel's own; what a call launches on a GPU.
    """

    target: str
    schedule: str
    provenance: str
    workspace_bytes: int
    file: str
    sha256: str
    launches: tuple[Launch, ...] = ()


@dataclass(frozen=True)
class BundledKernel:
    """One kernel: its name, its function in C, the layer it is for, and the operator with all that it was called with.

    `epilogue` has those of its options that are not the default. `workspace_bytes` is what its function takes for one
    thread, `workspace_bytes_per_thread` for each further one. `codes` are in the order of the manifest's targets.
    """

    name: str
    function: str
    layer: str
    operator: str
    attributes: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    dtype: str
    epilogue: Mapping[str, Any]
    workspace_bytes: int
    workspace_bytes_per_thread: int
    codes: tuple[Code, ...]

    @computed_once
    def problem(self) -> Problem:
        """The gradient, checked like one that a user asks for. ValueError or TypeError where it is none."""
        kind = getattr(spec, self.operator, None)
        if not (isinstance(kind, type) and issubclass(kind, spec.Operator)):
            raise ValueError(f"operator {show(self.operator)} is unknown")
        operator = kind(**self.attributes)
        names = (*operator.input_names, operator.output_name)
        if list(self.shapes) != list(names):
            raise ValueError(f"shapes of {', '.join(self.shapes)[:_LONGEST]}, expected those of {', '.join(names)}")
        first, second, result = self.shapes.values()
        problem = operator.problem(first, second, dtype=self.dtype, **dict(self.epilogue))
        if problem.output_shape != result:
            raise ValueError(f"{names[2]} has shape {result}, expected {problem.output_shape}")
        return problem


@dataclass(frozen=True)
class Manifest:
    """All that is known of a bundle. `files` has every file that must be as it was built, by its plain name.

    `library` is None where there is none: a bundle for GPUs, whose `architecture` is "cuda".
    """

    name: str
    library: str | None
    architecture: str
    system: str
    versions: Mapping[str, str]
    targets: tuple[BundleTarget, ...]
    files: Mapping[str, File]
    kernels: tuple[BundledKernel, ...]

    def to_json(self) -> str:
        """The file's text: a line for each field, and for each kernel."""
        content = {"format": FORMAT, **asdict(self)}
        content = {"sha256": sealed(content), **content}
        kernels = ",\n".join(f"  {json.dumps(kernel)}" for kernel in content.pop("kernels"))
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
        return "\n".join(["{", *(f"{line}," for line in lines), f' "kernels": [\n{kernels}\n ]', "}", ""])


def parse_manifest(text: bytes) -> Manifest:
    """The manifest in a file's bytes; BundleError that says what is wrong with it."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise BundleError(f"is no JSON: {reason}") from None
    if not isinstance(content, dict):
        raise BundleError(f"holds {show(content)}, expected an object")
    version = content.pop("format", None)
    if type(version) is not int or version != FORMAT:
        raise BundleError(f"format: got {show(version)}, expected {FORMAT}: another version of tvmconvgrad built it")
    if "sha256" not in content:
        raise BundleError("sha256: missing")
    seal = fields.digest("sha256", content.pop("sha256"))
    manifest: Manifest = fields.record("", content, Manifest, _MANIFEST)
    _check(manifest)
    if seal != sealed({"format": version, **content}):
        raise BundleError("has changed: its SHA-256 is not the one that it holds")
    return manifest


def sealed(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's values. What a library's functions are called with comes from them: a changed shape,
    or another function's name, would have a kernel write where no tensor is."""
    return hashlib.sha256(canonical(content)).hexdigest()


def _check(manifest: Manifest) -> None:
    if manifest.library is not None and manifest.library not in manifest.files:
        raise BundleError(f"library: {manifest.library!r} is not among its files")
    targets = [entry.target for entry in manifest.targets]
    if not targets:
        raise BundleError("targets: is empty, expected at least one")
    for place, target in enumerate(targets):
        try:
            kind = parse_target(target).kind
        except ValueError as reason:
            raise BundleError(f"targets[{place}]: {reason}") from None
        if (kind == "cuda") != (manifest.architecture == CUDA) or (kind == "cuda") != (manifest.library is None):
            raise BundleError(f"targets[{place}]: {target!r} does not go with architecture {manifest.architecture!r}")
    names: set[str] = set()
    for place, kernel in enumerate(manifest.kernels):
        about = f"kernels[{place}] ({kernel.name})"
        if kernel.name in names:
            raise BundleError(f"{about}: name: there is another kernel of this name")
        names.add(kernel.name)
        if [code.target for code in kernel.codes] != targets:
            raise BundleError(f"{about}: codes: expected one for each of the targets, in their order")
        for code in kernel.codes:
            if code.file not in manifest.files:
                raise BundleError(f"{about}: codes: {code.file!r} is not among its files")
        try:
            _ = kernel.problem
        except (ValueError, TypeError) as reason:
            raise BundleError(f"{about}: {reason}") from None


def _shapes(about: str, value: object) -> dict[str, Shape]:
    return fields.mapping(about, value, fields.sizes)


def _epilogue(about: str, value: object) -> dict[str, Any]:
    found = fields.attributes(about, value)
    for name in found:
        if name not in asdict(PLAIN):
            raise BundleError(f"{about}.{name}: unknown, expected {', '.join(asdict(PLAIN))}")
    return found


def _records(kind: type[Any], parsers: Mapping[str, fields.Parser]) -> Callable[[str, object], tuple[Any, ...]]:
    def parse(about: str, value: object) -> tuple[Any, ...]:
        entries = enumerate(fields.of_type(about, value, list))
        return tuple(fields.record(f"{about}[{place}]", entry, kind, parsers) for place, entry in entries)

    return parse


def _files(about: str, value: object) -> dict[str, File]:
    found: dict[str, File] = fields.mapping(about, value, lambda at, entry: fields.record(at, entry, File, _FILE))
    for name in found:
        fields.file_name(f"{about}.{show(name)}", name)
    return found


_FILE = {"bytes": fields.count, "sha256": fields.digest}
_TARGET = {"target": fields.line, "requires": fields.texts}
_LAUNCH: dict[str, fields.Parser] = {
    "function": fields.word,
    "grid": fields.extent,
    "block": fields.extent,
    "shared_bytes": fields.count,
    "arguments": fields.arguments,
    "early": fields.flag,
}
_CODE: dict[str, fields.Parser] = {
    "target": fields.line,
    "schedule": fields.text,
    "provenance": fields.text,
    "workspace_bytes": fields.count,
    "file": fields.file_name,
    "sha256": fields.digest,
    "launches": _records(Launch, _LAUNCH),
}
_KERNEL: dict[str, fields.Parser] = {
    "name": fields.word,
    "function": fields.word,
    "layer": fields.text,
    "operator": fields.word,
    "attributes": fields.attributes,
    "shapes": _shapes,
    "dtype": fields.line,
    "epilogue": _epilogue,
    "workspace_bytes": fields.count,
    "workspace_bytes_per_thread": fields.count,
    "codes": _records(Code, _CODE),
}
_MANIFEST: dict[str, fields.Parser] = {
    "name": fields.word,
    "library": lambda about, value: None if value is None else fields.file_name(about, value),
    "architecture": fields.line,
    "system": fields.line,
    "versions": lambda about, value: fields.mapping(about, value, fields.text),
    "targets": _records(BundleTarget, _TARGET),
    "files": _files,
    "kernels": _records(BundledKernel, _KERNEL),
}
