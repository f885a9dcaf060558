"""Sums of elements times factors, as a row of a transformation's matrix has them, in few operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tvm import tirx

from tvmconvgrad.te import tensors
from tvmconvgrad.te.tensors import Index


@dataclass(frozen=True)
class Term:
    """A term `factor` * `value` of a sum; `place` is its column in the matrix."""

    place: int
    factor: Fraction
    value: Index


def linear(factors: Sequence[Fraction], values: Sequence[Index]) -> Index:
    """The sum of factors times values, in parts that rows for the points p and -p share: even and odd powers of p."""
    terms = _with_pairs_added([Term(*term) for term in zip(range(len(values)), factors, values) if term[1]])
    parts = [[term for term in terms if term.place % 2 == odd] for odd in (0, 1)]
    first, *rest = sorted((_scaled_sum(part) for part in parts if part), key=lambda part: part[0] < 0)
    total = first[1] if first[0] > 0 else -first[1]
    for sign, value in rest:
        total = total + value if sign > 0 else total - value
    return total


def _with_pairs_added(terms: Sequence[Term]) -> list[Term]:
    """The terms, those at the columns of p and -p made one where their factors have the same size."""
    found: list[Term] = []
    for term in terms:
        last = found[-1] if found else None
        if last and last.place % 2 and last.place + 1 == term.place and abs(last.factor) == abs(term.factor):
            both = last.value + term.value if last.factor == term.factor else last.value - term.value
            found[-1] = Term(last.place, last.factor, both)
        else:
            found.append(term)
    return found


def _scaled_sum(terms: Sequence[Term]) -> tuple[int, Index]:
    """A sum of terms, as its sign and a sum in which the first factor is positive."""
    sign = 1 if terms[0].factor > 0 else -1
    total: Index | None = None
    for term in terms:
        size = abs(term.factor)
        value = term.value if size == 1 else term.value * tirx.const(float(size), tensors.ACCUMULATOR)
        total = value if total is None else total + value if sign * term.factor > 0 else total - value
    return sign, total
