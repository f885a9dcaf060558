"""The final of a search: whether one of the best candidates is faster than the default. Imports no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tvmconvgrad.tuning.measure import Measurer

FINALISTS = 3
_ROUNDS = (4, 11)  # at least and at most, with tensors in the caches, and as many without
_FINAL_SECONDS = 4.0
_LEAST_GAIN = 1.02
"""What a winner must gain to be kept: less is noise."""


class Verdict(NamedTuple):
    """Seconds of the default and of what is best, how much faster the latter is, and which candidate it is: None where
    that is the default."""

    default: float
    seconds: float
    gain: float = 1.0
    winner: int | None = None


def decide(measurer: Measurer, default: str, candidates: Sequence[str], best: float | None) -> Verdict:
    """Run libraries beside the default's, in turn, and keep one that gains for certain. TrialFailed.

    `best` is about what a call takes, in seconds.
    """
    rounds = int(_FINAL_SECONDS / (4 * (1 + len(candidates)) * (best or 0.01)))
    least, most = _ROUNDS
    mine, *others = measurer.compare([default, *candidates], max(least, min(most, rounds)))
    verdict = Verdict(median(mine), median(mine))
    for number, theirs in enumerate(others):
        gain, nearly_always = gains(mine, theirs)
        if gain > max(verdict.gain, _LEAST_GAIN) and nearly_always > 1:
            verdict = Verdict(verdict.default, verdict.default / gain, gain, number)
    return verdict


def gains(default: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How much faster the other one is, round by round: the median, and what three quarters of the rounds exceed."""
    ratios = sorted(one / two for one, two in zip(default, other))
    return median(ratios), ratios[len(ratios) // 4]
