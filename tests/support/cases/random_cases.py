"""Random valid cases: the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution, Shape, same_pads
from tests.support.cases.layouts import DATA_FORMATS, filter_formats

SPATIAL = {1: 40, 2: 13, 3: 7}
"""The largest x by rank."""
DTYPES = ("f32", "f16", "bf16")
AUTO_PADS = ("none", "none", "none", "same_upper", "same_lower", "valid")
NARROW = 0.05
"""The share of images that are narrow as a whole: number by number they would hardly ever be drawn."""
CHANNELS = (1, 1, 2, 3, 4, 5, 7, 8, 8, 9, 15, 16, 16, 17, 24, 32, 33)


def random_case(random: Random, operator: str, *, beyond: bool = True) -> Case:
    """A valid case of an operator.

    `beyond` allows sizes without a forward Convolution: elements of x past the last tap, strides or more of them,
    which ConvTranspose reaches by its output_padding.
    """
    transposed = operator.startswith("ConvTranspose")
    padded = operator != "ConvolutionBackpropFilters" and random.random() < 0.5
    auto_pad, found = "none", _narrow(random) if random.random() < NARROW else None
    while found is None:
        auto_pad = random.choice(AUTO_PADS)
        extra = beyond and transposed and random.random() < 0.2
        found = _convolution(random, auto_pad, extra=extra, padded=padded)
    conv, sizes = found
    # without the attribute ConvTransposeBackpropData takes the largest x
    largest = all(b < s for b, s in zip(conv.beyond, conv.strides, strict=True))
    padding = None if not padded and (largest or operator != "ConvTransposeBackpropData") else sizes
    inferable = operator == "ConvolutionBackpropData" and not auto_pad.startswith("same")
    inferable = inferable and (padding is not None or not any(conv.beyond))
    ways = ["attribute", "attribute", "input"] + ["not"] * inferable
    return Case(
        operator,
        conv,
        data_format=random.choice(DATA_FORMATS),
        filter_format=random.choice(list(filter_formats(operator))),
        auto_pad=auto_pad,
        output_padding=padding,
        shape_by="not" if operator == "ConvTransposeBackpropData" else random.choice(ways),
        dtype=random.choice(DTYPES),
        new_names=random.random() < 0.5,
    )


def random_cases(seed: int, count: int, *, beyond: bool = True, dtype: str | None = None) -> list[Case]:
    """Cases of the four operators in turn, of a random type each or all of one."""
    random = Random(seed)
    cases = (random_case(random, OPERATORS[i % len(OPERATORS)], beyond=beyond) for i in range(count))
    return [case if dtype is None else case.with_dtype(dtype) for case in cases]


def explicit(case: Case) -> Case:
    """The same case with explicit pads in place of auto_pad."""
    return replace(case, auto_pad="none")


def _convolution(random: Random, auto_pad: str, *, extra: bool, padded: bool) -> tuple[Convolution, Shape] | None:
    """A convolution and the output_padding that its sizes stand for; None where a kernel does not fit."""
    rank = random.choice((1, 2, 2, 2, 3))
    axes: list[Shape | None] = []
    if auto_pad == "none" and random.random() < 0.3:
        axes = [_plain_axis(random, SPATIAL[rank]) for _ in range(rank)]
        if None in axes:
            return None
    while len(axes) < rank:
        if auto_pad.startswith("same"):
            axis = _same_axis(random, auto_pad, SPATIAL[rank], padded=padded)
        else:
            axis = _explicit_axis(random, auto_pad, SPATIAL[rank], extra=extra)
        if axis is None:
            return None
        axes.append(axis)
    columns = zip(*(axis for axis in axes if axis is not None), strict=True)
    x, y, k, strides, dilations, begin, end, padding = (tuple(column) for column in columns)
    groups, c, o = _channels(random)
    return Convolution(random.randint(1, 3), groups, c, o, x, y, k, strides, dilations, begin, end), padding


def _narrow(random: Random) -> tuple[Convolution, Shape]:
    """One or two columns between pads, each of which the filter takes for itself; few channels; all strides 1."""
    rows = random.choice((0, 1, 1, 1, 2))
    axes = [(random.randint(1, 6), *random.choice(((1, 0), (2, 1), (3, 1), (3, 2)))) for _ in range(rows)]
    columns, begin, end = (random.choice(numbers) for numbers in ((1, 1, 1, 2), (0, 1, 1, 1, 2, 5), (0, 1, 1, 1, 2, 5)))
    x, k, begins = zip(*axes, (columns, 1, begin))
    ends, ones = (*begins[:-1], end), (1,) * len(x)
    y = tuple(size + b + e + 1 - taps for size, b, e, taps in zip(x, begins, ends, k))
    c, o = random.choice(((4, 4), (8, 8), (8, 8), (16, 16), (random.randint(1, 9), random.randint(1, 9))))
    return Convolution(random.randint(1, 2), 1, c, o, x, y, k, ones, ones, begins, ends), (0,) * len(x)


def _channels(random: Random) -> tuple[int, int, int]:
    """Groups and both channel counts: dense, grouped or depthwise."""
    kind = random.choice(("dense", "dense", "whole", "grouped", "depthwise"))
    if kind == "whole":
        return 1, random.choice((4, 8, 16)), random.choice((4, 8, 16))
    if kind == "dense":
        return 1, random.choice(CHANNELS), random.choice(CHANNELS)
    if kind == "grouped":
        groups = random.choice((2, 3, 4))
        return groups, groups * random.choice(CHANNELS[:8]), groups * random.choice(CHANNELS[:8])
    groups = random.choice((2, 5, 8, 13, 16, 17, 19, 33))
    return groups, groups, groups * random.choice((1, 1, 2))


def _window(random: Random) -> tuple[int, int, int]:
    """Kernel, stride and dilation of one axis: at times plain, so that a case has several such axes and pads."""
    if random.random() < 0.4:
        return random.choice((1, 3)), 1, 1
    return random.choice((1, 1, 2, 3, 3, 4, 5, 7)), random.choice((1, 1, 2, 3, 4, 7)), random.choice((1, 1, 2, 3, 6))


def _size(random: Random, largest: int) -> int:
    """The size of x along one axis: as often one or two elements as more."""
    return random.randint(*random.choice(((1, 1), (1, 2), (1, 4), (1, largest), (largest // 2, largest))))


def _same_axis(random: Random, auto_pad: str, largest: int, *, padded: bool) -> Shape | None:
    """y, x, k, stride, dilation, pads and output_padding of one axis under same_upper or same_lower."""
    x, (k, stride, dilation) = _size(random, largest), _window(random)
    extent, y = (k - 1) * dilation + 1, -(-x // stride)
    least = max(0, x - stride * (y - 1) - extent)
    padding = random.randint(least, stride - 1) if padded else 0
    return x, y, k, stride, dilation, *same_pads(auto_pad, x, y, extent, stride, padding), padding


def _plain_axis(random: Random, largest: int) -> Shape | None:
    """The same with stride and dilation 1 and equal pads: some faults take several such numbers at once."""
    x, k, pad = _size(random, largest), random.choice((1, 3)), random.choice((0, 1, 1, 2))
    y = x + 2 * pad - k + 1
    return (x, y, k, 1, 1, pad, pad, 0) if y > 0 else None


def _explicit_axis(random: Random, auto_pad: str, largest: int, *, extra: bool) -> Shape | None:
    """The same under none or valid; None where the kernel does not fit."""
    x, (k, stride, dilation) = _size(random, largest), _window(random)
    extent = (k - 1) * dilation + 1
    most = 0 if auto_pad == "valid" else random.choice((0, 1, 2, extent + 1, x + extent + stride))
    begin = random.randint(0, most)
    end = begin if random.random() < 0.4 else random.randint(0, most)
    steps, rest = divmod(x + begin + end - extent, stride)
    if steps < 0:
        return None
    more = stride * random.randint(1, 2) if extra else 0
    return x + more, steps + 1, k, stride, dilation, begin, end, rest + more
