"""What a kernel is made of besides its problem and target: this package's own text, as far as a build runs it.

A build begins in the compiler and the rules of a backend, and runs what those import, what this imports, and so on,
wherever the import is written. Those modules, and the files other than Python's that lie beside them (C that is linked
in), are in the key of the cache: an edit of any makes other kernels, and one elsewhere in the package leaves those that
are kept.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any

from tvmconvgrad.common import process

PACKAGE = __name__.partition(".")[0]
_ROOT = os.path.dirname(os.path.dirname(__file__))

# Parsing these files takes a third of a second, and this a hundredth of it. In a docstring it may find too much.
_IMPORT = re.compile(
    rb"\n[ \t]*(?:from[ \t]+(%b[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+(%b\.[\w.]+))"
    % (PACKAGE.encode(), PACKAGE.encode())
)
_FOR_TYPES = re.compile(rb"\n([ \t]*)if TYPE_CHECKING:(?:\n\1[ \t]+.*|\n[ \t]*)+(?=\n)")
_WORD = re.compile(rb"[A-Za-z_]\w*")


@functools.cache
def digest(*modules: str) -> str:
    """Of all that a build which begins in these modules is made of."""
    contents = closure(*modules)
    if contents:
        beside = {path for folder in {os.path.dirname(path) for path in contents} for path in _data(folder)}
        contents |= {path: _read(path) for path in beside}
    else:
        contents = dict(_all_contents(_installed()))
    whole = hashlib.sha256()
    for name, content in sorted(contents.items()):
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def closure(*modules: str) -> dict[str, bytes]:
    """The text of modules and of all that they import from this package, by their places in it.

    Without the outermost package, which imports all there is. Nothing where modules are installed without their text.
    """
    places = {_dotted(place): place for place in _walk("")}
    found: dict[str, bytes] = {}
    seen, wanted = set(modules), list(modules)
    while wanted:
        name = wanted.pop()
        place = places.get(name)
        if place is not None:
            found[place] = _read(place)
            new = ({name.rpartition(".")[0]} | imported(found[place])) - seen - {PACKAGE}
            seen |= new
            wanted += new
    return found


def _walk(folder: str) -> Iterator[str]:
    """All modules, by their places in the package."""
    try:
        entries = list(os.scandir(os.path.join(_ROOT, folder)))
    except OSError:  # in an archive
        return
    for entry in entries:
        if entry.is_dir():
            yield from _walk(f"{folder}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield folder + entry.name


def _dotted(place: str) -> str:
    return ".".join((PACKAGE, *place.removesuffix(".py").removesuffix("/__init__").split("/")))


def _data(folder: str) -> Iterator[str]:
    """The files of a folder that are not Python's."""
    for entry in os.scandir(os.path.join(_ROOT, folder)):
        if not entry.name.endswith((".py", ".pyc", ".pyi", ".so")) and entry.is_file():
            yield os.path.join(folder, entry.name)


def _read(place: str) -> bytes:
    with open(os.path.join(_ROOT, place), "rb") as file:
        return file.read()


def imported(text: bytes) -> set[str]:
    """What a module's text imports of this package when it runs. A name in a module may be a module itself."""
    found = set()
    for package, names, whole in _IMPORT.findall(_FOR_TYPES.sub(b"", b"\n" + text)):
        found.add((package or whole).decode())
        found |= {f"{package.decode()}.{name.decode()}" for name in _WORD.findall(names)}
    return found


def _installed() -> Any:
    with process.lock:
        from importlib import resources  # takes as long as all else here, and is seldom wanted
    return resources.files(PACKAGE)


def _all_contents(folder: Any) -> Iterator[tuple[str, bytes]]:
    """All files of the package, where it is installed without its text, or in an archive."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from ((f"{entry.name}/{name}", content) for name, content in _all_contents(entry))
        elif entry.is_file():
            yield entry.name, entry.read_bytes()
