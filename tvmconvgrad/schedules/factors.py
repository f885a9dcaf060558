"""Numbers to split loops by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import prod


@lru_cache(maxsize=1024)  # models of many tiles ask for those of the same few sizes
def divisors(value: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(value**0.5) + 1) if value % d == 0]
    return tuple(sorted({*small, *(value // d for d in small)}))


def largest_divisor(value: int, limit: int) -> int:
    """The largest divisor of `value` that does not exceed `limit` (at least 1)."""
    found = divisors(value)
    return found[bisect_right(found, max(limit, 1)) - 1]


def nearest_run(value: int, limit: int) -> int:
    """The length of runs that cover `value` elements: `value` if that is within `limit`. Otherwise more than half of
    `limit` and at most `limit`: the length that adds the fewest elements, and of these the longest."""
    if value <= limit:
        return value
    return min(range(limit, limit // 2, -1), key=lambda run: -(-value // run) * run)


def nearest_divisor(value: int, wanted: int, limit: int | None = None) -> int:
    """The divisor of `value` that differs from `wanted` (at least 1) by the least factor; none above `limit`."""
    wanted = max(wanted, 1)
    fitting = (d for d in divisors(value) if limit is None or d <= limit)
    return min(fitting, key=lambda d: max(d / wanted, wanted / d))


def least_divisor(value: int, limit: int) -> int:
    """The least divisor of `value` that is not below `limit`; `value` if there is none."""
    return min((d for d in divisors(value) if d >= limit), default=value)


def inner_extents(extents: Sequence[int], limit: int) -> list[int]:
    """For each loop of a nest, the extent of its inner part, so that the inner parts have at most `limit` steps.

    The innermost loops are taken whole while they fit, then a divisor of the next one. Loops outside of it get 1.
    """
    inner = [1] * len(extents)
    for i in reversed(range(len(extents))):
        inner[i] = largest_divisor(extents[i], limit // prod(inner[i + 1 :]))
        if inner[i] < extents[i]:
            break
    return inner
