"""Cases for Winograd's algorithm, and the rules that compute them by it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from itertools import product
from math import gcd

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import kinds_of

TARGET = "llvm -mcpu=native -algorithm=auto"
RULES = {"w": ("winograd-weights", "winograd-channels"), "x": ("winograd-data",), "y": ("winograd-data",)}
CONVOLUTIONS = [
    # whole vectors of channels, and tails of them; images of a number of tiles, and with a rest of rows and columns
    Convolution(2, 1, 32, 48, (12, 16), (12, 16), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(3, 1, 17, 33, (7, 9), (7, 9), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 3, 70, (23, 13), (21, 11), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 1, 130, 5, (4, 4), (6, 6), (3, 3), (1, 1), (1, 1), (2, 2), (2, 2)),
    # less than a large tile; pads that exceed the taps; pads on one side
    Convolution(2, 1, 16, 16, (4, 4), (2, 2), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 1, 16, 32, (5, 6), (13, 14), (3, 3), (1, 1), (1, 1), (5, 5), (5, 5)),
    Convolution(2, 1, 16, 16, (8, 9), (9, 8), (3, 3), (1, 1), (1, 1), (3, 0), (0, 1)),
    # tiles that interleave
    Convolution(1, 1, 16, 24, (17, 11), (13, 9), (3, 3), (1, 1), (2, 1), (0, 0), (0, 0)),
    Convolution(2, 1, 8, 16, (13, 15), (13, 15), (3, 3), (1, 1), (3, 2), (3, 2), (3, 2)),
    # five taps, and two: tiles of two and of five positions, for data only
    Convolution(2, 1, 16, 32, (11, 14), (9, 14), (5, 5), (1, 1), (1, 1), (1, 2), (1, 2)),
    Convolution(1, 1, 32, 16, (12, 9), (12, 8), (5, 2), (1, 1), (1, 1), (2, 0), (2, 0)),
    # one axis of three taps, beside one tap, two, and three that are more than a tile may have
    Convolution(2, 1, 24, 16, (10, 12), (10, 12), (3, 1), (1, 1), (1, 1), (1, 0), (1, 0)),
    Convolution(2, 1, 24, 16, (10, 12), (9, 12), (2, 3), (1, 1), (1, 2), (0, 2), (0, 2)),
    Convolution(3, 1, 20, 32, (50,), (50,), (3,), (1,), (1,), (1,), (1,)),
    Convolution(1, 1, 16, 32, (5, 6, 7), (5, 6, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Convolution(2, 1, 16, 8, (4, 7, 5), (2, 7, 5), (3, 3, 1), (1, 1, 1), (1, 1, 1), (0, 1, 0), (0, 1, 0)),
]

STRIDED = [
    # data gradients, by output phases that begin at one or at two positions: odd sizes, channels of K in tails
    Convolution(2, 1, 32, 256, (8, 16), (4, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(3, 1, 16, 17, (13, 9), (6, 5), (4, 4), (2, 2), (1, 1), (0, 1), (1, 2)),
    Convolution(2, 1, 32, 5, (18, 21), (6, 7), (6, 6), (3, 3), (1, 1), (1, 2), (2, 1)),
    Convolution(1, 1, 16, 8, (4, 6), (2, 3), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    # phases of five taps; of two taps beside three; of two taps beside one, with gaps between elements
    Convolution(1, 1, 16, 8, (10, 8), (5, 4), (10, 10), (2, 2), (1, 1), (4, 4), (4, 4)),
    Convolution(1, 1, 16, 24, (10, 9), (5, 9), (4, 3), (2, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 16, 16, (12, 9), (6, 5), (4, 1), (2, 2), (1, 1), (1, 0), (1, 0)),
    # dilated phases, and one phase, since stride and dilation have a common divisor
    Convolution(1, 1, 16, 16, (20, 21), (7, 8), (4, 4), (2, 2), (3, 3), (1, 2), (1, 1)),
    Convolution(1, 1, 16, 16, (15, 14), (6, 6), (3, 3), (2, 2), (2, 2), (0, 1), (0, 0)),
    Convolution(2, 1, 48, 16, (50,), (25,), (4,), (2,), (1,), (1,), (1,)),
    Convolution(1, 1, 16, 8, (6, 8, 10), (3, 4, 5), (4, 4, 4), (2, 2, 2), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
]

DEEP = [
    Convolution(1, 1, 32, 1024, (8, 8), (4, 4), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 1, 32, 1024, (8, 8), (8, 8), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
]
"""Whose sums over channels are long."""

LARGER = [
    # several work items and cache blocks; split-K, and none; filters that work items transform
    Convolution(4, 1, 32, 32, (40, 48), (40, 48), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 1, 16, 16, (61, 61), (61, 61), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 256, 192, (7, 7), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
]


def is_taken(case: Case) -> bool:
    """Whether the result is in NXC, or has a number of vectors of channels; strided ones have."""
    channels = case.convolution.shapes[case.result][1]
    return case.result == "w" or case.data_format == "NXC" or channels % 16 == 0


def taps(conv: Convolution) -> list[int]:
    """The taps of an output phase along each axis."""
    return [k // (s // gcd(s, d)) for k, s, d in zip(conv.k, conv.strides, conv.dilations)]


def cases() -> list[Case]:
    """All convolutions and operators, layouts and types in turn."""
    found: list[Case] = []
    for conv, operator in [*product(CONVOLUTIONS, OPERATORS), *product(STRIDED, OPERATORS[1:2])]:
        formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(operator)]
        for shift in (0, 3):
            turn = len(found) + shift
            found.append(Case(operator, conv, *formats[turn % len(formats)], ("f32", "f16", "bf16")[turn % 3]))
    found = [case for case in found if is_taken(case)]
    found += [Case(operator, conv) for conv in LARGER for operator in OPERATORS]
    return [*found, *(Case(OPERATORS[0], conv, "NCX", "OIX") for conv in LARGER)]


def compiled(case: Case, rule: str | None = None) -> cg.Kernel:
    found: cg.Kernel = replace(case.call, target=TARGET, schedule=rule or RULES[case.result][0]).compile()
    assert found.schedule.startswith("winograd-")
    return found


def forced(most_taps: int = 5) -> list[tuple[Case, str]]:
    """The cases of so few taps, each with all rules: with five there is none for filters."""
    taken = [case for case in cases() if max(taps(case.convolution)) <= (3 if case.result == "w" else most_taps)]
    return [(case, rule) for case in taken for rule in RULES[case.result]]


def exact() -> list[tuple[Case, str]]:
    """Those with tiles of at most four products along an axis, whose sums of small integers are exact."""
    return forced(most_taps=3)


def kinds(pair: tuple[Case, str]) -> list[Hashable]:
    return [*kinds_of(pair[0]), pair[1]]
