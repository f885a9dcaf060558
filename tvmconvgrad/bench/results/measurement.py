"""What was measured of one gradient or forward, and the arithmetic on it: medians, ratios, shares of the peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

from tvmconvgrad.bench.variants import OURS
from tvmconvgrad.layers import Layer
from tvmconvgrad.layers.layer import kind_of
from tvmconvgrad.spec import Problem


class Ratio(NamedTuple):
    """How many times as long another one takes: the median of the rounds, the least and the greatest."""

    median: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Measurement:
    """One gradient or forward of a layer, by all variants. Times are in seconds."""

    suite: str
    layer: str
    kind: str
    """"filters", "data" or "forward"."""
    operator: str
    """What the peers compute: a gradient, Convolution or ConvTranspose."""
    dtype: str
    problem: str
    flops: int
    tensor_bytes: int
    """Bytes of the inputs and the result."""
    workspace_bytes: int
    schedule: str
    is_depthwise: bool
    is_stem: bool
    is_wide: bool
    """Whether it is dense, with 64 channels or more on both sides."""
    rounds: Mapping[str, Sequence[float]]
    """Seconds of each round, by the label of the variant; without those that refused."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a variant was not measured."""
    differences: Mapping[str, str] = field(default_factory=dict)
    """How a peer's result differs from the right one."""
    origin: str = "default"
    """Where our kernel's decisions come from: "default", or a tuning log."""

    @classmethod
    def of(cls, suite: str, layer: Layer, problem: Problem, forward: str | None = None, **measured: Any) -> Measurement:
        """Of a layer's gradient, or of the operator `forward`, with whatever was measured of it."""
        return cls(
            suite=suite,
            layer=layer.name,
            kind="forward" if forward else kind_of(problem),
            operator=forward or problem.operator,
            dtype=problem.dtype,
            problem=str(problem),
            flops=problem.flops,
            tensor_bytes=problem.tensor_bytes,
            is_depthwise=layer.is_depthwise,
            is_stem=layer.is_stem,
            is_wide=layer.is_wide,
            **measured,
        )

    @property
    def seconds(self) -> float:
        """Our time."""
        return median(self.rounds[OURS])

    @property
    def gflops(self) -> float:
        """Our rate."""
        return self.flops / self.seconds / 1e9

    @property
    def intensity(self) -> float:
        """Operations for each byte of the inputs and the result."""
        return self.flops / self.tensor_bytes

    @property
    def workspace_fits(self) -> bool:
        """Whether the workspace is at most as large as the inputs and the result together."""
        return self.workspace_bytes <= self.tensor_bytes

    def fastest(self, labels: Sequence[str]) -> str | None:
        """Which of these variants has the least median; None where none was measured."""
        measured = [label for label in labels if label in self.rounds]
        return min(measured, key=lambda label: median(self.rounds[label]), default=None)

    def ratio(self, labels: Sequence[str]) -> Ratio | None:
        """The fastest of these variants beside ours, round by round; above 1 ours is faster."""
        label = self.fastest(labels)
        if label is None:
            return None
        ratios = [theirs / mine for theirs, mine in zip(self.rounds[label], self.rounds[OURS], strict=True)]
        return Ratio(median(ratios), min(ratios), max(ratios))

    def to_dict(self) -> dict[str, Any]:
        """All fields and what follows from them, as JSON's types."""
        derived = {
            "milliseconds": {label: median(times) * 1e3 for label, times in self.rounds.items()},
            "gflops": self.gflops,
            "intensity": self.intensity,
            "workspace_fits": self.workspace_fits,
        }
        return {**asdict(self), **derived}


class Column(NamedTuple):
    """A ratio in the report: a title, and the variants of which the fastest counts."""

    title: str
    labels: tuple[str, ...]


def columns(labels: Sequence[str]) -> list[Column]:
    """A column for each variant besides ours; PyTorch's share one."""
    found: dict[str, list[str]] = {}
    for label in labels:
        if label != OURS:
            found.setdefault("PyTorch" if label.startswith("PyTorch") else label, []).append(label)
    return [Column(title, tuple(members)) for title, members in found.items()]
