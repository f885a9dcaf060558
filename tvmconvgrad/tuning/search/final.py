"""The final of a search: whether one of the best candidates is faster than the default. Imports no compiler."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tvmconvgrad.spec.values import counted
from tvmconvgrad.tuning.workers.measure import Measurer

FINALISTS = 3
_ROUNDS = (4, 11)  # at least and at most: this number with tensors in the caches, and this number without
FINAL_SECONDS = 4.0
"""What it takes, about, unless a single run takes long."""
LEAST_GAIN = 1.02
"""What a winner must gain to be kept: less is noise."""


class Verdict(NamedTuple):
    """Seconds of the default and of what is best, how much faster the latter is, and which candidate it is: None where
    that is the default. `why` says what speaks against all others then."""

    default: float
    seconds: float
    gain: float = 1.0
    winner: int | None = None
    why: str = ""


def decide(
    measurer: Measurer, default: str, candidates: Sequence[str], best: float | None, most_seconds: float = FINAL_SECONDS
) -> Verdict:
    """Run libraries beside the default's, in turn, and keep one that gains for certain. TrialFailed.

    `best` is about what a call takes, in seconds. What was measured of each alone decides nothing: minutes lie between
    those measurements, in which the machine becomes faster or slower than by most of what there is to gain.
    """
    rounds = int(min(most_seconds, FINAL_SECONDS) / (4 * (1 + len(candidates)) * (best or 0.01)))
    least, most = _ROUNDS
    mine, *others = measurer.compare([default, *candidates], max(least, min(most, rounds)))
    found = [gains(mine, theirs) for theirs in others]
    sure = [number for number, (gain, nearly_always) in enumerate(found) if gain > LEAST_GAIN and nearly_always > 1]
    seconds = median(mine)
    if not sure:
        return Verdict(seconds, seconds, why=_why_not(found, len(mine)))
    winner = max(sure, key=lambda number: found[number])
    gain, _ = found[winner]
    return Verdict(seconds, seconds / gain, gain, winner)


def _why_not(found: Sequence[tuple[float, float]], rounds: int) -> str:
    """Why none of the candidates with these gains is taken."""
    if not found:
        return "no other candidate was measured"
    gain, _ = max(found)
    best = (
        f"run in turn with it, {rounds} times, the best of {counted(len(found), 'other')} was {gain:.2f} times as fast"
    )
    if gain > LEAST_GAIN:
        return f"{best}, but in less than three quarters of the rounds faster at all"
    return f"{best}, and less than {LEAST_GAIN} is noise"


def gains(default: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """How much faster the other one is, round by round: the median, and what three quarters of the rounds exceed."""
    ratios = sorted(one / two for one, two in zip(default, other))
    return median(ratios), ratios[len(ratios) // 4]
