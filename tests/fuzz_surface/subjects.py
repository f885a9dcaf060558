"""What is read from files: each kind with a good file, and what may come of a damaged one."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz_surface.damage import INSTEAD, damaged, damaged_json, put, text_of
from tests.fuzz_surface.judging import Found
from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.bundles.load import load
from tvmconvgrad.bundles.manifest import parse_manifest, sealed
from tvmconvgrad.cache.entry import MAGIC, canonical
from tvmconvgrad.cache.store import CacheWarning, KernelCache
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records import logs, lookup
from tvmconvgrad.records.entry import DamagedEntry, Entry, parse
from tvmconvgrad.records.logs import TuningWarning
from tvmconvgrad.spec import Problem

DESCRIPTION: dict[str, Any] = {"problem": "a", "list": [1, 2.5, None]}
LIBRARY, FACTS = bytes(range(200)), {"schedule": "s", "workspace_bytes": 1, "requires": ["avx2"]}


class Subject(ABC):
    """A kind of files."""

    def __init__(self, random: Random, folder: Path) -> None:
        self.random, self.folder = random, folder

    @abstractmethod
    def damage(self) -> Any:
        """Put something damaged in a good file's place; what it is, for the text of a fault."""

    @abstractmethod
    def read(self) -> str:
        """Read it, and say what came of it: any error that is not documented is a fault, and so is a false belief."""

    def anything(self, good: bytes, content: Any = None) -> bytes | Callable[[Path], None]:
        """Damaged bytes, damaged JSON, or what is no file."""
        way = self.random.random()
        if way < 0.05:
            return self.random.choice(INSTEAD)
        if content is not None and way < 0.6:
            return text_of(self.random, damaged_json(self.random, content)).encode(errors="surrogatepass")
        return damaged(self.random, good)


def sealed_text(random: Random, content: dict[str, Any]) -> bytes:
    """Damaged JSON with a digest that is right, as somebody would write it who knows how."""
    changed = damaged_json(random, {name: value for name, value in content.items() if name != "sha256"})
    try:
        loaded = json.loads(text_of(random, changed))
        return json.dumps({"sha256": sealed(loaded), **loaded}).encode()
    except (ValueError, TypeError, RecursionError):
        return text_of(random, changed).encode(errors="surrogatepass")


class Bundles(Subject):
    """A bundle's folder: its manifest, its library, or another file of it."""

    def __init__(self, random: Random, folder: Path, bundle: Path) -> None:
        super().__init__(random, folder)
        self._copy = folder / "bundle"
        shutil.copytree(bundle, self._copy)
        self._good = {path.name: path.read_bytes() for path in self._copy.iterdir()}
        self._content = json.loads(self._good["manifest.json"])
        self._names = ["manifest.json", *self._content["files"]]
        self._last = self._names[0]

    def damage(self) -> Any:
        put(self._copy / self._last, self._good[self._last])
        self._last = name = self.random.choice([self._names[0], self.random.choice(self._names)])
        json_content = self._content if name == "manifest.json" else None
        whole = self.random.random() < 0.02
        content = self._good[name] if whole else self.anything(self._good[name], json_content)
        put(self._copy / name, content)
        return name, content

    def read(self) -> str:
        try:
            bundle = load(self._copy)
        except BundleError as error:
            if len(str(error)) > 2000:
                raise Found(f"BundleError of {len(str(error))} characters") from error
            return "refused"
        except OSError:
            return "OSError"
        if json.loads((self._copy / "manifest.json").read_bytes()) != self._content:
            raise Found("a changed manifest is believed")
        if any((self._copy / name).read_bytes() != self._good[name] for name in self._content["files"]):
            raise Found("a changed file is believed")
        return f"believed, of {len(bundle)} kernels"


class Manifests(Subject):
    """Manifests with a digest that is right: nothing but a BundleError, or problems that are some."""

    def __init__(self, random: Random, folder: Path, bundle: Path) -> None:
        super().__init__(random, folder)
        self._good = json.loads((bundle / "manifest.json").read_bytes())
        self._text = b""

    def damage(self) -> Any:
        self._text = sealed_text(self.random, self._good)
        return self._text

    def read(self) -> str:
        try:
            manifest = parse_manifest(self._text)
        except BundleError:
            return "refused"
        for kernel in manifest.kernels:
            assert str(kernel.problem)
        return "parsed"


class CacheEntries(Subject):
    """A kernel in the cache: the stored one, or none with a warning."""

    def __init__(self, random: Random, folder: Path) -> None:
        super().__init__(random, folder)
        self._cache = KernelCache(folder / "cache")
        key = self._cache.store(DESCRIPTION, LIBRARY, FACTS).key
        self._path = folder / "cache" / f"{key}.kernel"
        self._good = self._path.read_bytes()

    def damage(self) -> Any:
        content = self._forged() if self.random.random() < 0.3 else self.anything(self._good)
        put(self._path, content)
        return content

    def _forged(self) -> bytes:
        """Right in everything but its description and facts."""
        texts = [canonical(DESCRIPTION), canonical(FACTS)]
        place = self.random.randrange(2)
        damage = damaged_json(self.random, (DESCRIPTION, FACTS)[place])
        texts[place] = text_of(self.random, damage).encode(errors="surrogatepass")
        head = struct.pack(">8s3Q", MAGIC, *map(len, texts), len(LIBRARY))
        payload = b"".join((*texts, LIBRARY))
        return head + hashlib.sha256(head + payload).digest() + payload

    def read(self) -> str:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            entry = self._cache.load(DESCRIPTION)
        if entry is None:
            if not self._path.is_symlink() and self._path.exists() and not told:
                raise Found("a damaged entry is passed over without a word")
            if any(warning.category is not CacheWarning for warning in told):
                raise Found(f"told as {told[0].category.__name__}: {told[0].message}")
            return "set aside"
        if entry.library != LIBRARY or canonical(entry.description) != canonical(DESCRIPTION):
            raise Found("a damaged entry is believed")
        return "believed"


class LogLines(Subject):
    """A tuning log that is looked up in: entries that were written, or warnings."""

    def __init__(self, random: Random, folder: Path, entries: list[Entry], problem: Problem) -> None:
        super().__init__(random, folder)
        self._entries, self._problem, self._target = entries, problem, parse_target(entries[0].target)
        self._path = logs.target_folder(folder / "logs", self._target) / logs.FILE
        self._path.parent.mkdir(parents=True)
        self._good = "".join(entry.line() for entry in entries).encode()

    def damage(self) -> Any:
        lines = [json.loads(entry.line()) for entry in self._entries]
        place = self.random.randrange(len(lines))
        content = self.anything(self._good)
        if not callable(content) and self.random.random() < 0.5:
            texts = [json.dumps(line) for line in lines]
            texts[place] = text_of(self.random, damaged_json(self.random, lines[place]))
            content = "\n".join(texts).encode(errors="surrogatepass")
        put(self._path, content)
        return content

    def read(self) -> str:
        lookup._read.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            entries = lookup._entries(self._path, str(self._target))
        if any(warning.category is not TuningWarning for warning in told):
            raise Found(f"told as {told[0].category.__name__}: {told[0].message}")
        if any(len(str(warning.message)) > 2000 for warning in told):
            raise Found(f"a warning of {max(len(str(warning.message)) for warning in told)} characters")
        if any(entry not in self._entries for entry in entries.values()):
            raise Found("a changed entry is believed")
        return "warned" if told else "read"


class Lines(Subject):
    """Lines of logs whose digest is right: nothing but a DamagedEntry, or an entry that holds what it says."""

    def __init__(self, random: Random, folder: Path, entries: list[Entry]) -> None:
        super().__init__(random, folder)
        self._entries, self._line = entries, ""

    def damage(self) -> Any:
        content = json.loads(self.random.choice(self._entries).line())
        content.pop("digest")
        text = text_of(self.random, damaged_json(self.random, content))
        try:
            loaded = json.loads(text)
            text = json.dumps({**loaded, "digest": hashlib.sha256(canonical(loaded)).hexdigest()[:16]})
        except (ValueError, TypeError, RecursionError):
            pass
        self._line = text
        return text

    def read(self) -> str:
        try:
            entry = parse(self._line)
        except DamagedEntry as error:
            if len(str(error)) > 1000:
                raise Found(f"DamagedEntry of {len(str(error))} characters") from error
            return "refused"
        assert parse(entry.line()) == entry
        assert isinstance(entry.key, str)
        hash(entry.choice)
        use_problem(Problem.from_dict(entry.problem))
        return "parsed"


def use_problem(problem: Problem) -> None:
    """What is done with any problem."""
    hash(problem)
    shapes = (*problem.input_shapes, problem.output_shape)
    if Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) != problem or not shapes or not str(problem):
        raise Found(f"{problem} is another one when it is read again")
    if not problem.key or problem.flops < 0 or problem.tensor_bytes < 0:
        raise Found(f"{problem} has no numbers")
