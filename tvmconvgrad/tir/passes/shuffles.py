"""How vectors are shuffled to transpose the blocks that they hold: which lanes of two vectors each new one takes.

A matrix of S x S elements, S = 2**s, in S vectors is transposed when the bits of a vector's number have become those of
its lanes. A round takes one bit: of each two vectors that differ in it, it makes two whose lanes differ in it. Where
the lanes of one 128-bit register are interleaved, x86 and Arm have an instruction for it (`unpcklps`, `zip1`), even on
AVX2's two halves at once; the bits of a lane then turn by one, and after as many rounds as these have bits they stand
in the vector's number, in reverse. Beyond 128 bits a round exchanges one bit for one, as `vperm2f128` does.

Vectors of L = P x S lanes transpose P matrices side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Vector = TypeVar("Vector")

REGISTER_BITS = 128


def transposed(
    vectors: Sequence[Vector], lanes: int, element_bits: int, shuffle: Callable[[Vector, Vector, list[int]], Vector]
) -> list[Vector]:
    """S vectors of P x S lanes, of which each S x S lanes are transposed; `shuffle` makes a vector from numbered lanes
    of two, those of the second behind those of the first."""
    rounds = len(vectors).bit_length() - 1
    interleaved = min(rounds, (REGISTER_BITS // element_bits).bit_length() - 1)
    now = list(vectors)
    for bit in range(rounds):
        top = interleaved if bit < interleaved else bit + 1
        for i in range(len(now)):
            if not i >> bit & 1:
                j = i | 1 << bit
                now[i], now[j] = (shuffle(now[i], now[j], _taken(lanes, bit, top, half)) for half in (0, 1))
    return [now[_reversed(number, interleaved)] for number in range(len(now))]


def interleaved(lanes: int) -> list[list[int]]:
    """Which lanes of two vectors the first, and the second, half of their interleaving takes."""
    order = [first + place for place in range(lanes) for first in (0, lanes)]
    return [order[:lanes], order[lanes:]]


def _taken(lanes: int, bit: int, top: int, half: int) -> list[int]:
    """The lanes that a round takes for the first, or second, of two new vectors: of the lanes' bits, those from `bit`
    to `top` turn by one, the lowest chooses one of the vectors, and the highest is the half."""
    low, middle = (1 << bit) - 1, (1 << top) - 1
    taken = []
    for lane in range(lanes):
        source = lane & low | (lane & middle) >> bit + 1 << bit | half << top - 1 | lane & ~middle
        taken.append(source + lanes * (lane >> bit & 1))
    return taken


def _reversed(number: int, bits: int) -> int:
    """A number whose lowest bits are in reverse."""
    low = number & (1 << bits) - 1
    return number - low + sum((low >> bit & 1) << bits - 1 - bit for bit in range(bits))
