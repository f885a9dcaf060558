"""Which shuffles transpose a block in registers: for each new vector, the lanes that it takes from two others.

A block of S x S elements, S = 2**s, lies in S vectors. Transposing it exchanges the bits of an element's vector number
with the bits of its lane. Each of s rounds does so for one bit: from two vectors whose numbers differ in that bit it
makes two new ones, whose lanes differ in it. Within 128 bits a round interleaves the lanes of two vectors, for which
x86 and Arm have an instruction (`unpcklps`, `zip1`; with AVX2 on both halves at once). That rotates the lane's bits by
one, so after these rounds they stand in the vector's number in reverse order. Beyond 128 bits a round exchanges just
two bits, as `vperm2f128` does.

Vectors of L = P x S lanes transpose P blocks side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Vector = TypeVar("Vector")

REGISTER_BITS = 128


def transposed(
    vectors: Sequence[Vector], lanes: int, element_bits: int, shuffle: Callable[[Vector, Vector, list[int]], Vector]
) -> list[Vector]:
    """S vectors of P x S lanes in which each block of S x S elements is transposed. `shuffle(a, b, lanes)` makes a
    vector of the numbered lanes of `a` and `b`; those of `b` count on from those of `a`."""
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
    """The lanes of two vectors that the first, and the second, half of their interleaving takes."""
    order = [first + place for place in range(lanes) for first in (0, lanes)]
    return [order[:lanes], order[lanes:]]


def strided(count: int, stride: int) -> tuple[list[int], list[int]]:
    """How `count` elements, `stride` from each other, are loaded as vectors of `count` elements: where each vector
    begins, and the lanes of all of them that are the elements. Nothing behind the last element is loaded."""
    begins = [min(part * count, (count - 1) * stride + 1 - count) for part in range(stride)]
    parts = ((place, place // count) for place in range(0, count * stride, stride))
    return begins, [part * count + place - begins[part] for place, part in parts]


def _taken(lanes: int, bit: int, top: int, half: int) -> list[int]:
    """The lanes that a round takes for the first, or second (`half`), of two new vectors. Of a lane's bits, those from
    `bit` to `top` are rotated by one; the lowest selects one of the two old vectors, and `half` becomes the highest."""
    low, middle = (1 << bit) - 1, (1 << top) - 1
    taken = []
    for lane in range(lanes):
        source = lane & low | (lane & middle) >> bit + 1 << bit | half << top - 1 | lane & ~middle
        taken.append(source + lanes * (lane >> bit & 1))
    return taken


def _reversed(number: int, bits: int) -> int:
    """A number with its lowest `bits` bits reversed."""
    low = number & (1 << bits) - 1
    return number - low + sum((low >> bit & 1) << bits - 1 - bit for bit in range(bits))
