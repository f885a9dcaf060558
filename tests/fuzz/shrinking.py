"""A smaller sample that fails in the same way: each number in turn as small as it goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from tests.fuzz.pool import Judged, Pool
from tests.fuzz.sample import PLAIN, Sample, with_convolution
from tests.support.cases.convolution import Convolution, Shape


def kind(verdict: str) -> str:
    """What a verdict's text begins with."""
    return verdict.partition(":")[0]


def shrunk(pool: Pool, found: Judged, seconds: float = 90.0) -> Judged:
    """The smallest sample found in that time."""
    best, end, seen = found, time.monotonic() + seconds, set()
    again = True
    while again and best.sample is not None:
        again = False
        for smaller in _smaller(best.sample):
            if time.monotonic() > end:
                return best
            if str(smaller) in seen:
                continue
            seen.add(str(smaller))
            (judged,) = pool.judge([smaller])
            if kind(judged.verdict) == kind(best.verdict):
                best, again = judged, True
                break
    return best


def _smaller(sample: Sample) -> Iterator[Sample]:
    """What is one step simpler, the greatest steps first."""
    plain: dict[str, Any] = {"memory": (PLAIN, PLAIN, "new"), "given": {}, "threads": 1, "value": "", "rule": None}
    plain |= {"accumulate": False, "bias": "", "added": "", "result_dtype": ""}
    changes = ({name: value} for name, value in plain.items() if getattr(sample, name) != value)
    for change in changes:
        if "rule" not in change or not sample.given:
            yield replace(sample, **change)
    for name in sample.given:
        yield replace(sample, given={other: value for other, value in sample.given.items() if other != name})
    case = sample.case
    explicit = replace(case, auto_pad="none", new_names=False)
    if case.operator != "ConvTransposeBackpropData":
        explicit = replace(explicit, shape_by="attribute")
    for simpler in (explicit, case.with_dtype("f32")):
        if simpler != case:
            yield replace(sample, case=simpler)
    for conv in chain(_fewer_axes(case.convolution), _smaller_numbers(case.convolution)):
        yield replace(sample, case=with_convolution(explicit, conv))


def _fewer_axes(conv: Convolution) -> Iterator[Convolution]:
    if conv.rank > 1:
        for left_out in range(conv.rank):
            names = ("x", "y", "k", "strides", "dilations", "pads_begin", "pads_end")
            axes: dict[str, Any] = {name: _without(getattr(conv, name), left_out) for name in names}
            yield replace(conv, **axes)


def _without(sizes: Shape, place: int) -> Shape:
    return sizes[:place] + sizes[place + 1 :]


def _smaller_numbers(conv: Convolution) -> Iterator[Convolution]:
    if conv.groups > 1:
        yield replace(conv, groups=1, c=conv.c // conv.groups, o=conv.o // conv.groups)
        yield replace(conv, groups=2, c=conv.c // conv.groups * 2, o=conv.o // conv.groups * 2)
    for name, step in (("batch", 1), ("c", conv.groups), ("o", conv.groups)):
        size = getattr(conv, name)
        for less in sorted({step, size // step // 2 * step, size - step}):
            if 0 < less < size:
                yield replace(conv, **{name: less})
    for axis in range(conv.rank):
        for name, least in (("k", 1), ("strides", 1), ("dilations", 1), ("pads_begin", 0), ("pads_end", 0), ("x", 1)):
            size = getattr(conv, name)[axis]
            for less in sorted({least, size // 2, size - 1}):
                if least <= less < size:
                    yield from _valid(conv, axis, **{name: less})


def _valid(conv: Convolution, axis: int, **change: int) -> Iterator[Convolution]:
    """With one number of an axis changed, and the x that follows."""
    numbers: dict[str, Any] = {
        name: (*getattr(conv, name)[:axis], value, *getattr(conv, name)[axis + 1 :]) for name, value in change.items()
    }
    changed = replace(conv, **numbers)
    room = changed.x[axis] + changed.pads_begin[axis] + changed.pads_end[axis] - changed.extents[axis]
    y = room // changed.strides[axis] + 1
    if y > 0:
        yield replace(changed, y=(*changed.y[:axis], y, *changed.y[axis + 1 :]))
