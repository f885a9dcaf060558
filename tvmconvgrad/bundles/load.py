"""A bundle in Python: its files checked, its library opened, its kernels called. Needs NumPy and nothing heavier."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.bundles.manifest import CUDA, FILE, BundledKernel, BundleTarget, Manifest, parse_manifest
from tvmconvgrad.bundles.statuses import explain
from tvmconvgrad.common import process
from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.files.regular_file import UnfitFile, open_regular
from tvmconvgrad.machines.host import host_architecture, missing_features
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.native import bundled_function, load_bundle
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.spec.values import counted, parse_path

_MOST = 1 << 28
"""Bytes of a manifest."""


class Code(Protocol):
    """A bundle's code, ready to be called."""

    place: int
    """Where among the manifest's targets the one is whose code runs here."""

    def kernel(self, entry: BundledKernel, problem: Problem, target: Target) -> Kernel:
        """A kernel, as the one of a problem that differs in no more than axes of one element."""

    def runs_on(self, gpu: str | None) -> bool:
        """Whether it is what a call without a target takes: on the CPU (None), or on a GPU of this architecture."""


class Bundle(Mapping[str, Kernel]):
    """The kernels of a bundle by name, in the order of its header. `target` is the one whose code runs here."""

    def __init__(self, folder: Path, manifest: Manifest, code: Code) -> None:
        self.folder = folder
        self.manifest = manifest
        self._code = code
        self._entries = {kernel.name: kernel for kernel in manifest.kernels}
        self.target = parse_target(manifest.targets[code.place].target)

    def __getitem__(self, name: str) -> Kernel:
        entry = self._entries[name]
        return self._code.kernel(entry, entry.problem, self.target)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Bundle {self.manifest.name} in {self.folder}: {counted(len(self), 'kernel')} for {self.target}>"

    def find(
        self, problem: Problem, target: Target | None = None, schedule: str | None = None, gpu: str | None = None
    ) -> Kernel | None:
        """The kernel of a problem; None where the bundle has none, or none for this very target or by this schedule.

        Without a target it is one for the CPU, or for a GPU of the architecture `gpu`.
        """
        entry = self._by_key.get(reduced(problem).key)
        fits = self._code.runs_on(gpu) if target is None else _plain(target) == _plain(self.target)
        if entry is None or not fits:
            return None
        if schedule is not None and entry.codes[self._code.place].schedule.partition("(")[0] != schedule:
            return None
        return self._code.kernel(entry, problem, self.target)

    @computed_once
    def _by_key(self) -> dict[str, BundledKernel]:
        return {reduced(entry.problem).key: entry for entry in reversed(self.manifest.kernels)}


class _Library:
    """The code of a bundle for CPUs."""

    def __init__(self, manifest: Manifest, library: bytes) -> None:
        try:
            opened = load_bundle(library, f"{manifest.name}_set_threads")
            self.place = _place(manifest, opened[f"{manifest.name}_target"])
            self._functions = {
                one.name: bundled_function(opened, manifest.name, place, one.name, explain)
                for place, one in enumerate(manifest.kernels)
            }
        except AttributeError as reason:
            raise BundleError(f"{manifest.library} is not the manifest's: {reason}") from None

    def kernel(self, entry: BundledKernel, problem: Problem, target: Target) -> Kernel:
        code = entry.codes[self.place]
        return Kernel(problem, target, code.schedule, code.workspace_bytes, self._functions[entry.name])

    def runs_on(self, gpu: str | None) -> bool:
        return gpu is None


def load(folder: str | os.PathLike[str]) -> Bundle:
    """The bundle in a folder, for use on this machine.

    Its manifest and the hashes of its files are checked before its library is opened. Raises BundleError for what is
    no bundle, of another version, damaged, incomplete, or for another machine, and OSError where it cannot be read.
    """
    path = parse_path("folder", folder)
    try:
        manifest = parse_manifest(_manifest(path))
    except BundleError as reason:
        raise BundleError(f"{path / FILE}: {reason}") from None
    try:
        if manifest.architecture != CUDA:
            _check_machine(manifest)
        contents = {name: _checked(path, manifest, name) for name in manifest.files}
        return Bundle(path, manifest, _code(manifest, contents))
    except BundleError as reason:
        raise BundleError(f"{path}: {reason}") from None


def _code(manifest: Manifest, contents: Mapping[str, bytes]) -> Code:
    if manifest.library is not None:
        return _Library(manifest, contents[manifest.library])
    with process.lock:
        from tvmconvgrad.bundles.load_cuda import GpuCode
    return GpuCode(manifest, contents)


def _open(folder: Path, name: str) -> BinaryIO:
    """A regular file, opened. A link is refused: it may lead anywhere."""
    try:
        return open(open_regular(folder / name, follow=False), "rb")
    except FileNotFoundError:
        what = "is missing" if folder.is_dir() else f"is missing: there is no folder {folder}"
        raise BundleError(what) from None
    except NotADirectoryError:
        raise BundleError(f"is missing: {folder} is no folder") from None
    except UnfitFile:
        what = "is a symbolic link, expected a file" if (folder / name).is_symlink() else "is no regular file"
        raise BundleError(what) from None


def _manifest(folder: Path) -> bytes:
    with _open(folder, FILE) as file:
        if _size(file) > _MOST:
            raise BundleError(f"has {_size(file)} bytes, more than any manifest")
        return file.read(_MOST)


def _checked(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The bytes of a file, which are those that the manifest tells of."""
    expected = manifest.files[name]
    try:
        with _open(folder, name) as file:
            size = _size(file)  # before they are read: there may be more than there is memory
            content = file.read(expected.bytes) if size == expected.bytes else b""
    except BundleError as reason:
        raise BundleError(f"{name} {reason}") from None
    if size != expected.bytes:
        raise BundleError(f"{name} has changed: it has {size} bytes, and the manifest tells of {expected.bytes}")
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise BundleError(f"{name} has changed: its SHA-256 is not the one in the manifest")
    return content


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _check_machine(manifest: Manifest) -> None:
    here = host_architecture(), platform.system().lower()
    if (manifest.architecture, manifest.system) != here:
        built = f"{manifest.architecture} with {manifest.system}"
        raise BundleError(f"it is for {built}, and this machine is {here[0]} with {here[1]}")
    missing = [(entry, missing_features(entry.requires)) for entry in manifest.targets]
    if all(features for _, features in missing):
        raise BundleError(_unsupported(*min(missing, key=lambda pair: len(pair[1]))))


def _unsupported(target: BundleTarget, features: list[str]) -> str:
    return f"it has no code for this CPU: {target.target!r} needs {', '.join(features)}, which this CPU does not have"


def _place(manifest: Manifest, choose: Any) -> int:
    """Where among the manifest's targets the one is that the library chooses."""
    choose.restype = ctypes.c_char_p
    chosen = (choose() or b"").decode(errors="replace")
    for place, entry in enumerate(manifest.targets):
        if entry.target == chosen:
            return place
    raise BundleError(f"its library chose {chosen!r} for this CPU, which is none of the manifest's targets")


def _plain(target: Target) -> Target:
    """A target without its triple: a bundle is for this machine's architecture anyway."""
    return replace(target, mtriple=None)
