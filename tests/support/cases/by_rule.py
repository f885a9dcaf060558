"""Cases to force rules of schedules on: each rule takes some of them."""

from __future__ import annotations

from tests.support.cases import layouts
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution

CONVOLUTIONS = [
    # tails in channels, and dense sizes
    Convolution(2, 1, 17, 33, (9, 11), (9, 11), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 1, 3, 16, (13, 15), (7, 8), (3, 5), (2, 2), (1, 1), (1, 2), (1, 2)),
    # groups, depthwise, with multiplier; strides and dilations with and without a common factor
    Convolution(2, 3, 15, 21, (10, 7), (5, 3), (3, 2), (2, 3), (1, 1), (1, 0), (0, 1)),
    Convolution(1, 19, 19, 19, (8, 9), (4, 5), (3, 3), (2, 2), (1, 1), (1, 1), (0, 1)),
    Convolution(2, 5, 5, 10, (12,), (5,), (4,), (2,), (1,), (1,), (0,)),
    Convolution(1, 1, 8, 24, (14, 17), (5, 4), (3, 2), (2, 4), (2, 3), (0, 0), (0, 0)),
    # phases whose work items each are a single tile
    Convolution(2, 1, 1, 64, (100,), (98,), (5,), (2,), (1,), (50,), (49,)),
    # pads that whole tiles meet, along one axis and along all
    Convolution(1, 1, 17, 33, (9, 20), (9, 20), (3, 3), (1, 1), (6, 12), (6, 12), (6, 12)),
    Convolution(2, 4, 8, 12, (13, 6), (7, 3), (3, 3), (2, 2), (5, 3), (5, 3), (5, 3)),
    Convolution(1, 1, 9, 16, (3, 3, 4), (3, 3, 4), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    # phases with different numbers of channels, and so of work items
    Convolution(1, 1, 16, 1, (7,), (2,), (4,), (3,), (1,), (0,), (0,)),
    # positions that all meet pads alone
    Convolution(1, 1, 2, 2, (1,), (2,), (1,), (2,), (1,), (1,), (1,)),
    # 1x1, no window at all; 3-D
    Convolution(3, 1, 32, 64, (7, 7), (7, 7), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 2, 6, 34, (5, 6, 7), (3, 4, 4), (2, 3, 3), (2, 1, 2), (1, 2, 1), (0, 1, 1), (1, 1, 1)),
]

PLAIN = [
    # whole vectors of channels, so that nothing is copied: strided, grouped, 1x1, phases with positions of their own
    Convolution(2, 1, 16, 32, (9, 10), (5, 5), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
    Convolution(1, 2, 64, 64, (6, 7), (6, 7), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 1, 16, 32, (8, 8), (4, 4), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(3, 1, 48, 80, (5, 6), (5, 6), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    # taps of rows of their own, with a rest of rows and columns, and with some that no tap meets
    Convolution(2, 1, 96, 64, (9, 12), (5, 6), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 1, 128, 64, (9, 12), (4, 6), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 1, 128, 32, (40,), (13,), (2,), (3,), (2,), (0,), (0,)),
    Convolution(1, 1, 48, 32, (4, 7, 6), (2, 3, 3), (2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0)),
]

ROWS = [
    # filters of one channel a group, from rows of positions: with tails, in place, of small images and of long rows
    Convolution(2, 20, 20, 20, (9, 18), (9, 18), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 5, 5, 5, (8, 34), (6, 32), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(3, 3, 3, 3, (7, 7), (7, 7), (7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
    Convolution(2, 2, 2, 2, (150,), (142,), (5,), (1,), (2,), (0,), (0,)),
    Convolution(1, 2, 2, 2, (5, 90), (5, 90), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 3, 3, 3, (3, 5, 19), (3, 3, 19), (3, 3, 3), (1, 2, 1), (1, 1, 2), (1, 1, 2), (1, 1, 2)),
    # pads that exceed the kernel; more taps than there are registers; dilation along rows and columns
    Convolution(2, 4, 4, 4, (3, 5), (13, 15), (3, 3), (1, 1), (1, 1), (6, 6), (6, 6)),
    Convolution(1, 2, 2, 2, (40,), (16,), (37,), (1,), (1,), (7,), (5,)),
    Convolution(2, 3, 3, 3, (11, 13), (7, 9), (3, 3), (1, 1), (2, 3), (0, 1), (0, 1)),
    # several tiles of rows, in some of which only dilated taps meet pads
    Convolution(1, 2, 2, 2, (42, 33), (42, 33), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 2, 2, 2, (70, 17), (70, 17), (5, 3), (1, 1), (9, 1), (18, 1), (18, 1)),
    # phases with surplus depth, and several in a tile; the greatest stride; the tallest filters of masked loads
    Convolution(1, 2, 2, 2, (7, 9, 20), (4, 5, 10), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
    Convolution(1, 2, 2, 2, (16, 36), (3, 8), (8, 8), (4, 4), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 2, 2, 2, (9, 59), (9, 15), (3, 3), (1, 4), (1, 1), (1, 0), (1, 0)),
    Convolution(1, 2, 2, 2, (40, 18), (15, 18), (26, 3), (1, 1), (1, 1), (0, 1), (0, 1)),
    Convolution(1, 2, 2, 2, (40, 18), (14, 18), (27, 3), (1, 1), (1, 1), (0, 1), (0, 1)),
    # strides along both, with and without dilation; one tap
    Convolution(2, 6, 6, 6, (9, 37), (5, 19), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 3, 3, 3, (9, 41), (9, 13), (3, 3), (1, 3), (1, 2), (1, 0), (1, 0)),
    Convolution(2, 3, 3, 3, (9, 36), (5, 18), (3, 1), (2, 2), (1, 1), (1, 0), (1, 0)),
    Convolution(2, 3, 3, 3, (9, 36), (5, 18), (3, 4), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(1, 2, 2, 2, (9, 60), (9, 12), (3, 3), (1, 5), (1, 1), (1, 0), (1, 0)),
    # vectors of few positions, stored four elements apart
    Convolution(1, 3, 3, 3, (112,), (31,), (3,), (4,), (3,), (1,), (17,)),
    Convolution(1, 5, 5, 5, (2, 18), (2, 5), (3, 5), (4, 4), (2, 1), (1, 5), (6, 1)),
    # columns of single positions, and of single elements
    Convolution(2, 4, 4, 4, (9, 3), (9, 1), (3, 3), (1, 1), (1, 1), (1, 0), (1, 0)),
    Convolution(2, 4, 4, 4, (9, 1), (5, 1), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 4, 4, 4, (1, 1), (1, 1), (5, 5), (1, 1), (1, 1), (2, 2), (2, 2)),
    Convolution(2, 3, 3, 3, (4, 7), (4, 7), (3, 13), (1, 1), (1, 1), (1, 6), (1, 6)),
    # few channels that all meet: several tiles of them, in several cache blocks and splits
    Convolution(2, 1, 12, 10, (64, 100), (64, 100), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 1, 3, 8, (41, 50), (40, 52), (3, 3), (2, 1), (1, 2), (20, 3), (20, 3)),
]

BY_CHANNELS = [
    # results that lie two to five elements apart, with and without others between them, in tiles that are whole
    Convolution(2, 1, 32, 16, (8, 32), (4, 16), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
    Convolution(1, 1, 32, 16, (5, 46), (5, 16), (1, 1), (1, 3), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 1, 64, 16, (4, 64), (4, 16), (2, 4), (1, 4), (1, 1), (1, 0), (0, 0)),
    Convolution(1, 1, 64, 16, (4, 40), (4, 8), (1, 5), (1, 5), (1, 1), (0, 0), (0, 0)),
    Convolution(1, 16, 32, 32, (8, 16), (4, 8), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 6, 6, 6, (9, 37), (5, 19), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    Convolution(2, 3, 3, 3, (6, 57), (6, 19), (3, 3), (1, 3), (1, 1), (1, 0), (1, 0)),
    # 1x1: few channels, which are read where they lie; rows that a tile divides or not; a strided window
    Convolution(2, 1, 24, 8, (8, 32), (8, 32), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 1, 24, 40, (9, 37), (9, 37), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    Convolution(2, 1, 24, 40, (13, 37), (7, 19), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
]


def _by_channels() -> list[Case]:
    kinds = [("ConvolutionBackpropData", "OIX", "f32"), ("ConvolutionBackpropFilters", "OIX", "f32")]
    kinds += [("ConvolutionBackpropData", "XIO", "f16")]
    return [Case(operator, conv, "NCX", axes, dtype) for conv in BY_CHANNELS for operator, axes, dtype in kinds]


def _rows() -> list[Case]:
    convolution, transposed = "ConvolutionBackpropFilters", "ConvTransposeBackpropFilters"
    f32 = [(convolution, "OIX", "f32"), (transposed, "IOX", "f32")]
    f32 += [("ConvolutionBackpropData", "OIX", "f32"), ("ConvTransposeBackpropData", "IOX", "f32")]
    kinds = [*f32, (convolution, "XIO", "bf16"), (convolution, "OIX", "f16")]
    kinds += [("ConvolutionBackpropData", "OIX", "bf16"), ("ConvolutionBackpropData", "XIO", "f16")]
    return [Case(operator, conv, "NCX", axes, dtype) for conv in ROWS for operator, axes, dtype in kinds]


def cases() -> list[Case]:
    """All convolutions and operators, layouts and types in turn; those for one layout in it."""
    found: list[Case] = []
    for conv in PLAIN:
        found += [Case(operator, conv, "NXC", "XIO", "f32") for operator in OPERATORS]
    for conv in CONVOLUTIONS:
        for operator in OPERATORS:
            formats = [(d, f) for d in layouts.DATA_FORMATS for f in layouts.filter_formats(operator)]
            turn = len(found)
            dtype = ("f32", "f16", "bf16")[turn // len(OPERATORS) % 3]
            found.append(Case(operator, conv, *formats[turn % len(formats)], dtype))
    return [*found, *_rows(), *_by_channels()]


def rules_for(case: Case) -> list[str]:
    """Names of the rules that take a case."""
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.spec.reducing import reduced

    return schedules.applicable(reduced(case.call.problem()), parse_target(None))
