"""Damaged files of a search, of layers, and of arrays."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz_surface.damage import damaged, damaged_json, put, text_of
from tests.fuzz_surface.judging import Found
from tests.fuzz_surface.subjects import Subject, use_problem
from tvmconvgrad.layers.files import layers_text, read_layers
from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.records.choice import Choice
from tvmconvgrad.records.task import Task
from tvmconvgrad.tuning.remote.pack import CONTENTS, DamagedPack, Pack, new_pack


class Packs(Subject):
    """A pack of candidates: a DamagedPack, or tasks that are some."""

    def __init__(self, random: Random, folder: Path, task: Task, choices: list[Choice]) -> None:
        super().__init__(random, folder)
        self._path, self._out, library = folder / "pack.zip", folder / "out", folder / "library"
        library.write_bytes(random.randbytes(3000))
        with new_pack(self._path, task.target, "0.1") as writer:
            for _ in range(2):
                writer.add(task, [(choice, library) for choice in choices])
        self._good, self._out = self._path.read_bytes(), folder / "out"
        self._out.mkdir()
        with zipfile.ZipFile(self._path) as file:
            self._members = {name: file.read(name) for name in file.namelist()}

    def damage(self) -> Any:
        content = self.anything(self._good)
        if not callable(content) and self.random.random() < 0.5:
            content = self._rewritten()
        put(self._path, content)
        return content

    def _rewritten(self) -> bytes:
        """A whole archive whose pack.json is damaged."""
        content = damaged_json(self.random, json.loads(self._members[CONTENTS]))
        text = text_of(self.random, content).encode(errors="surrogatepass")
        new = text if self.random.random() < 0.9 else damaged(self.random, text)
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w") as file:
            for name, data in {**self._members, CONTENTS: new}.items():
                file.writestr(name, data)
        return memory.getvalue()

    def read(self) -> str:
        try:
            pack = Pack(self._path)
            for task in pack.tasks:
                use_problem(task.problem)
                assert all(hash(choice) and choice.rule for choice in task.candidates)
                assert isinstance(task.on(pack.target, 1, "x").title, str)
                assert len(list(pack.unpack(task, self._out))) == len(task.candidates)
        except DamagedPack as error:
            if len(str(error)) > 2000:
                raise Found(f"DamagedPack of {len(str(error))} characters") from error
            return "refused"
        except OSError:
            return "OSError"
        return "read"


class LayerFiles(Subject):
    """A file of layers, JSON or TOML: a ValueError that names the file, or layers."""

    def __init__(self, random: Random, folder: Path) -> None:
        super().__init__(random, folder)
        sizes: dict[str, Any] = {"batch": 2, "channels": 8, "filters": 4, "input_size": (6, 5), "kernel": (3, 3)}
        layers = [Layer(name="one", **sizes), Layer(name="two", pads_begin=(1, 1), strides=(2, 1), groups=2, **sizes)]
        self._good = {suffix: layers_text(layers, suffix).encode() for suffix in (".json", ".toml")}
        self._path = folder / "none"

    def damage(self) -> Any:
        suffix = self.random.choice(list(self._good))
        self._path, good = self.folder / f"layers{suffix}", self._good[suffix]
        content = self.anything(good, json.loads(good) if suffix == ".json" else None)
        put(self._path, content)
        return content

    def read(self) -> str:
        try:
            layers = read_layers(self._path)
        except (ValueError, TypeError) as error:
            if type(error) in (ValueError, TypeError) and self._path.name not in str(error):
                raise Found(f"{type(error).__name__} does not name the file: {error}") from error
            if len(str(error)) > 10_000:
                raise Found(f"{type(error).__name__} of {len(str(error))} characters") from error
            return "refused"
        except OSError:
            return "OSError"
        assert all(isinstance(layer, Layer) for layer in layers)
        return "read"


class Arrays(Subject):
    """A .npy file of the command line: an error in words, or an array."""

    def __init__(self, random: Random, folder: Path) -> None:
        super().__init__(random, folder)
        memory = io.BytesIO()
        np.save(memory, np.ones((2, 3, 4), np.float32))
        self._good, self._path = memory.getvalue(), folder / "array.npy"

    def damage(self) -> Any:
        content = self.anything(self._good)
        put(self._path, content)
        return content

    def read(self) -> str:
        from tvmconvgrad.cli.common.errors import UserError
        from tvmconvgrad.cli.run import _load

        try:
            array = _load(str(self._path))
        except UserError as error:
            if self._path.name not in str(error) or len(str(error)) > 2000:
                raise Found(f"UserError: {str(error)[:500]}") from error
            return "refused"
        assert isinstance(array, np.ndarray)
        return "read"


class Records(Subject):
    """A search's measured candidates: those that were written, in whatever file."""

    def __init__(self, random: Random, folder: Path, task: Task) -> None:
        from tvmconvgrad.tuning.search.strategy import Decisions
        from tvmconvgrad.tuning.search.trials import RECORDS, Trials

        super().__init__(random, folder)
        self._folder, self._space = folder / "trials", Decisions(task)
        trials = Trials(self._folder, self._space)
        for place, candidate in enumerate(self._space.samples(4)):
            trials.append(candidate.measured, [0.25 + place, 0.5 + place, 0.75 + place])
        trials.close()
        self._path = self._folder / RECORDS
        self._good = self._path.read_bytes()

    def damage(self) -> Any:
        lines = [json.loads(line) for line in self._good.splitlines()]
        content = self.anything(self._good)
        if not callable(content) and self.random.random() < 0.5:
            place = self.random.randrange(len(lines))
            texts = [json.dumps(line) for line in lines]
            texts[place] = text_of(self.random, damaged_json(self.random, lines[place]))
            content = "\n".join(texts).encode(errors="surrogatepass")
        put(self._path, content)
        return content

    def read(self) -> str:
        from tvmconvgrad.tuning.search.trials import Trials

        try:
            trials = Trials(self._folder, self._space)
        except OSError:
            return "OSError"
        trials.close()
        for candidate in trials.best(8):
            assert candidate.choice.rule
        return "all" if trials.times == [0.5, 1.5, 2.5, 3.5] else "in part"
