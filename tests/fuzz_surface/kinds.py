"""All kinds of files that are read, each with good ones to damage."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz_surface.archives import Arrays, LayerFiles, Packs, Records
from tests.fuzz_surface.subjects import Bundles, CacheEntries, Lines, LogLines, Manifests, Subject
from tvmconvgrad import ConvolutionBackpropFilters
from tvmconvgrad.deploy.api import build
from tvmconvgrad.layers import Layer
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records.choice import DEFAULT_SPACE, Choice
from tvmconvgrad.records.entry import Entry, parse
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec.reducing.merging import merged
from tvmconvgrad.workers.environment import tvm_version

OP = ConvolutionBackpropFilters(strides=(1, 1), dilations=(1, 1), auto_pad="same_upper", filter_shape=(3, 3, 16, 32))
LAYERS = [
    Layer(name="dense", batch=1, channels=4, filters=3, input_size=(5, 4), kernel=(3, 2), strides=(2, 1)),
    Layer(name="up", op="ConvTranspose", batch=2, channels=2, filters=2, input_size=(4,), kernel=(3,), strides=(2,)),
]
KINDS = ("bundles", "manifests", "cache", "logs", "lines", "packs", "layers", "arrays", "trials")


def make_bundle(folder: Path, layers: Sequence[Layer] = LAYERS) -> Path:
    """A small bundle for this CPU."""
    return build(layers, folder, name="small")


def make_task() -> Task:
    """What a search is for."""
    return Task(merged(OP.problem((2, 12, 12, 16), (2, 12, 12, 32))), parse_target(), 1, "a CPU", ("small/filters",))


def make_entries(task: Task) -> list[Entry]:
    """Lines of a log for one target: by decisions, by a trace, and that the default is best."""
    choices = (
        Choice.of("weights-o", {"tile": 1}, "weights-o(tile=1)"),
        Choice.of(DEFAULT_SPACE, {}, "a plan", "[]"),
        None,
    )
    tasks = [replace(task, problem=OP.problem((batch, 12, 12, 16), (batch, 12, 12, 32))) for batch in (2, 3, 4)]
    made = zip(tasks, choices, strict=True)
    facts: dict[str, Any] = {"trials": 64, "exhausted": False, "gain": 1.25, "seconds": 0.001}
    return [parse(Entry.of(one, tvm_version(), choice, **facts).line()) for one, choice in made]


def make_subjects(random: Random, folder: Path, only: Collection[str] = ()) -> Iterator[tuple[str, Subject]]:
    """Those kinds that are asked for, or all, each with a folder of its own."""
    task = make_task()
    entries = make_entries(task)
    choices = [entry.choice for entry in entries if entry.choice]
    for name in KINDS:
        if only and name not in only:
            continue
        place = folder / f"files-{name}"
        place.mkdir(mode=0o700)
        if name == "bundles":
            yield name, Bundles(random, place, make_bundle(folder / "bundles" / "good"))
        elif name == "manifests":
            yield name, Manifests(random, place, make_bundle(place / "bundle", LAYERS[:1]))
        elif name == "cache":
            yield name, CacheEntries(random, place)
        elif name == "logs":
            yield name, LogLines(random, place, entries, task.problem)
        elif name == "lines":
            yield name, Lines(random, place, entries)
        elif name == "packs":
            yield name, Packs(random, place, task, choices)
        elif name == "layers":
            yield name, LayerFiles(random, place)
        elif name == "arrays":
            yield name, Arrays(random, place)
        else:
            yield name, Records(random, place, task)
