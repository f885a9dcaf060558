"""What is measured: an implementation with its choices. A worker process runs one variant."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.peers.onednn.library import installed as onednn_installed
from tvmconvgrad.machines.targets import ALGORITHMS, DEFAULT, parse_target
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.dtypes import DTYPES
from tvmconvgrad.spec.layouts import DEFAULT_FILTERS, other_name
from tvmconvgrad.spec.values import nearest, show

OURS = "ours"
PEERS = ("onednn", "torch")


@dataclass(frozen=True)
class Variant:
    """One implementation with its choices; its label is its column's title."""

    label: str
    kind: str
    """"ours", "onednn", "torch" or "definition"."""
    mode: str = ""
    """plain or blocked of oneDNN, contiguous or channels_last of PyTorch."""
    data_format: str | None = None
    """None: the layouts that are asked for."""
    dtype: str | None = None
    """None: the type that is asked for."""
    schedule: str | None = None
    tuned: bool = True
    """Whether a tuning log is asked."""
    target: str = DEFAULT
    checkout: str | None = None
    """A folder with another state of this project, whose package is run; None: this one's."""

    def job(self, job: Job) -> Job:
        """A job as this variant computes it: the same numbers in its layouts and its type; by ours, as a gradient."""
        formats = (job.data_format, job.filter_format)
        if self.data_format is not None:
            usual = DEFAULT_FILTERS[self.data_format]
            formats = (self.data_format, other_name(usual, False) if job.operator == "ConvTranspose" else usual)
        asked = job.in_formats(*formats, self.dtype or job.dtype)
        return asked.as_gradient() if self.kind in (OURS, DEFINITION.kind) else asked

    def to_dict(self) -> dict[str, Any]:
        """What the worker is told, as JSON's types: all fields that older states know, too."""
        return {name: value for name, value in asdict(self).items() if name != "checkout"}


DEFINITION = Variant("definition", "definition")


def ours(target: str) -> Variant:
    """Our kernels as they are asked for."""
    return Variant(OURS, "ours", target=target)


def ours_too(text: str, base: Variant) -> Variant:
    """Our kernels with one or more choices changed: "NCX", "f32", "untuned", "direct", "auto", "schedule=NAME",
    "checkout=FOLDER", or several with commas.

    Raises ValueError for any other word, and for a folder without this package.
    """
    changed = replace(base, label=f"ours {text}")
    for word in text.split(","):
        if word in DATA_FORMATS:
            changed = replace(changed, data_format=word)
        elif word in DTYPES:
            changed = replace(changed, dtype=word)
        elif word == "untuned":
            changed = replace(changed, tuned=False)
        elif word in ALGORITHMS:
            changed = replace(changed, target=str(replace(parse_target(base.target), algorithm=word)))
        elif word.startswith("schedule=") and len(word) > len("schedule="):
            changed = replace(changed, schedule=word.removeprefix("schedule="))
        elif word.startswith("checkout="):
            changed = replace(changed, checkout=_checkout(word.removeprefix("checkout=")))
        else:
            words = (*DATA_FORMATS, *DTYPES, *ALGORITHMS)
            known = (*words, "untuned", "schedule=", "checkout=")
            expected = f"{', '.join(words)}, untuned, schedule=NAME or checkout=FOLDER"
            raise ValueError(
                f"variant: {show(word)} in {show(text)} is unknown{nearest(word, known)}, expected {expected}"
            )
    return changed


def _checkout(folder: str) -> str:
    path = Path(folder).absolute()
    if not folder or not (path / "tvmconvgrad" / "bench" / "worker.py").is_file():
        raise ValueError(f"variant: checkout={folder}: expected a folder with another state of tvmconvgrad")
    return str(path)


def peers(names: Sequence[str]) -> list[Variant]:
    """The variants of these implementations."""
    found = {"onednn": ("oneDNN", "plain", "blocked"), "torch": ("PyTorch", "contiguous", "channels_last")}
    chosen = {name: found[name] for name in names}
    return [Variant(f"{title} {mode}", kind, mode) for kind, (title, *modes) in chosen.items() for mode in modes]


def missing(names: Sequence[str]) -> list[str]:
    """Which of these implementations are not installed."""
    there = {"onednn": onednn_installed(), "torch": importlib.util.find_spec("torch") is not None}
    return [name for name in names if not there[name]]
