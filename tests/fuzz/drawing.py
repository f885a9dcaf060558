"""Random samples: the same for the same seed and version of the schedules."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz.placing import PLACES
from tests.fuzz.sample import EVERYWHERE, PLAIN, Sample, with_convolution
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.layouts import DATA_FORMATS, filter_formats
from tests.support.cases.random_cases import DTYPES, random_case
from tvmconvgrad.machines.host import missing_features

GENERATIONS = {
    "x86-64-v2": "sse4_2",
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512vl",
    "x86-64-v4 -mattr=+avx512bf16": "avx512_bf16",
    "x86-64-v4 -mattr=+avx512bf16,+amx-bf16": "amx_bf16",
    "native -mattr=-avx512bf16": "avx512_bf16",
}
"""CPUs to build for, and the feature that a machine must have to run such code."""
MOST_FLOPS = 3e7
MOST_PADDED = 2**63 - 1
GUARDED = ("before a forbidden page", "behind a forbidden page")
WRITABLE = (*GUARDED, *(place for place in PLACES if place != "read-only"))


def targets() -> list[str]:
    """All that this machine can run, each with and without the algorithms that have fewer products."""
    named = [cpu for cpu, feature in GENERATIONS.items() if not missing_features({feature})]
    return [f"llvm -mcpu={cpu}{more}" for cpu in ("native", *named) for more in ("", " -algorithm=auto")]


def draw(seed: int, index: int) -> Sample:
    """The sample of a number."""
    random = Random(f"{seed}/{index}")
    return _made(random, unscheduled(random))


def calls(sample: Sample) -> list[Sample]:
    """Several calls of a sample's kernel: building it takes much longer."""
    random = Random(sample.seed)
    values = ("", "inf", "nan", EVERYWHERE)
    others = [
        replace(
            sample,
            value=value,
            memory=_memory(random),
            bias=sample.bias and random.choice(WRITABLE),
            added=sample.added and _readable(random),
            threads=random.randint(1, 3),
            seed=random.getrandbits(30),
        )
        for value in values
    ]
    return [sample, *others]


def unscheduled(random: Random) -> Sample:
    """A sample for whatever rule is the cheapest."""
    case = _case(random)
    sample = Sample(case, _target(random, case), threads=random.randint(1, 3), seed=random.getrandbits(30))
    sample = replace(sample, value=random.choice(("", "", "", "", "inf", "nan")), memory=_memory(random))
    sample = replace(sample, result_dtype="f32" if random.random() < 0.2 else "")
    if case.result != "w" and random.random() < 0.25:
        return replace(sample, added=_readable(random))
    accumulate, bias = random.random() < 0.3, random.choice(WRITABLE) if random.random() < 0.2 else ""
    return replace(sample, accumulate=accumulate, bias=bias)


def _target(random: Random, case: Case) -> str:
    """A target; for bf16 half of the time one whose CPU multiplies it."""
    found = targets()
    own = [target for target in found if "+avx512bf16" in target] if case.dtype == "bf16" else []
    return random.choice(own if own and random.random() < 0.5 else found)


def _case(random: Random) -> Case:
    operator = random.choice(OPERATORS)
    special = random.random()
    if special < 0.08:
        return _huge(random, operator)
    if special < 0.11:
        return _large(random, operator)
    if special < 0.2:
        return _tileable(random, operator)
    if special < 0.28:
        return _oblong(random, operator)
    case = random_case(random, operator)
    while case.convolution.flops > MOST_FLOPS:
        case = random_case(random, operator)
    return _empty(random, case) if random.random() < 0.03 else case


def _empty(random: Random, case: Case) -> Case:
    """The same without images, or without channels on one side."""
    sizes: dict[str, Any] = {random.choice(("batch", "c", "o")): 0}
    return with_convolution(replace(case, shape_by=_said(case.operator)), replace(case.convolution, **sizes))


def _said(operator: str) -> str:
    """How the result's shape is given."""
    return "not" if operator == "ConvTransposeBackpropData" else "attribute"


def _formatted(random: Random, operator: str, conv: Convolution) -> Case:
    """A convolution in any of the operator's layouts, and of any type."""
    formats = random.choice(DATA_FORMATS), random.choice(list(filter_formats(operator)))
    padding = None if operator == "ConvolutionBackpropFilters" else conv.beyond
    return Case(operator, conv, *formats, random.choice(DTYPES), output_padding=padding, shape_by=_said(operator))


def _large(random: Random, operator: str) -> Case:
    """A layer as networks have them, or about so."""
    groups = random.choice((1, 1, 1, 4, 7, 32))
    c, o = (groups * -(-random.choice((16, 40, 64, 100, 128, random.randint(1, 160))) // groups) for _ in range(2))
    k, stride = random.choice((1, 3, 5)), random.choice((1, 1, 2))
    pad, more = random.choice((0, k // 2)), random.choice((0, 0, 1))
    xs = random.choice(((7, 7), (14, 14), (28, 28), (56, 56), (random.randint(5, 60), random.randint(5, 60))))
    axes = [(x, (x + 2 * pad - k) // stride + 1, k, stride, 1, pad, pad) for x in (xs[0] + more, xs[1] + more)]
    return _formatted(random, operator, Convolution(random.randint(1, 3), groups, c, o, *zip(*axes)))


def _oblong(random: Random, operator: str) -> Case:
    """Images of one long axis and few channels, mostly depthwise: their rows are cut into vectors and blocks of any
    size."""
    rank = random.randint(1, 3)
    lengths = [random.randint(13, 400), *(random.randint(1, 6) for _ in range(rank - 1))]
    axes = [_oblong_axis(random, y) for y in random.sample(lengths, rank)]
    groups = random.choice((1, 1, 2, 3, 5, 16, 24))
    c, o = (groups * random.choice((1, 1, 1, 2, 8) if groups > 1 else (1, 2, 8, 16)) for _ in range(2))
    return _formatted(random, operator, Convolution(random.randint(1, 2), groups, c, o, *zip(*axes)))


def _oblong_axis(random: Random, y: int) -> tuple[int, ...]:
    """The same numbers as `_huge_axis`, of one axis whose y has this extent."""
    k, stride, dilation = random.choice((1, 3, 3, 5)), random.choice((1, 1, 1, 2, 3)), random.choice((1, 1, 2))
    extent, window = (k - 1) * dilation + 1, (k - 1) * dilation + 1 + stride * (y - 1)
    begin, end = (random.choice((0, extent // 2, extent // 2, extent - 1)) for _ in range(2))
    x = max(1, window - begin - end)
    return x, (x + begin + end - extent) // stride + 1, k, stride, dilation, begin, end


def _tileable(random: Random, operator: str) -> Case:
    """A layer for Winograd's tiles, or AMX's: few taps of each output phase, strides that are mostly 1, whole and other
    vectors of channels."""
    axes = [_tileable_axis(random) for _ in range(random.choice((1, 2, 2, 2, 3)))]
    c, o = (random.choice((1, 8, 16, 16, 24, 32, 33, 48, 64)) for _ in range(2))
    return _formatted(random, operator, Convolution(random.randint(1, 3), 1, c, o, *zip(*axes)))


def _tileable_axis(random: Random) -> tuple[int, ...]:
    """The same numbers as `_huge_axis`, of one axis."""
    stride, dilation = random.choice((1, 1, 1, 1, 2, 2, 3)), random.choice((1, 1, 1, 2, 3))
    k = stride * random.choice((1, 2, 3, 3, 3, 3, 4, 5) if stride == 1 else (2, 2, 3))
    y, begin, end = random.randint(1, 14), random.randint(0, k), random.randint(0, k)
    x = stride * (y - 1) + (k - 1) * dilation + 1 - begin - end
    return (x, y, k, stride, dilation, begin, end) if x > 0 else _tileable_axis(random)


def _huge(random: Random, operator: str) -> Case:
    """Few elements, and attributes of any size."""
    axes = [_huge_axis(random) for _ in range(random.randint(1, 3))]
    groups = random.choice((1, 1, 2, 5))
    c, o = (groups * random.choice((1, 3, 8, 16)) for _ in range(2))
    return _formatted(random, operator, Convolution(random.randint(1, 2), groups, c, o, *zip(*axes)))


def _huge_axis(random: Random) -> tuple[int, ...]:
    """y, x, k, stride, dilation and pads; with the pads no more than are taken."""
    while (axis := _any_axis(random))[0] + sum(axis[5:]) > MOST_PADDED:
        pass
    return axis


def _any_axis(random: Random) -> tuple[int, ...]:
    x, y, k = random.randint(1, 4), random.randint(1, 3), random.randint(1, 3)
    stride, dilation = (_any_size(random) for _ in range(2))
    extent = (k - 1) * dilation + 1
    window = extent + stride * (y - 1)
    begin = random.choice((0, 1, dilation, stride, extent - 1, window // 2, random.randint(0, window)))
    begin = min(begin, window)
    return x, (x + (end := max(0, window - x - begin)) + begin - extent) // stride + 1, k, stride, dilation, begin, end


def _any_size(random: Random) -> int:
    return random.choice((1, 2, 3, 7, 1000, 2 ** random.randint(10, 30), 2 ** random.randint(10, 62) - 1))


def _memory(random: Random) -> tuple[str, str, str]:
    return _readable(random), _readable(random), random.choice(("new", *WRITABLE))


def _readable(random: Random) -> str:
    return random.choice((PLAIN, *GUARDED, *PLACES))


def _made(random: Random, sample: Sample) -> Sample:
    """With a rule out of those that take the problem, and some of its numbers."""
    from tvmconvgrad import schedules
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.spec.reducing import reduced

    whole, chosen, changed = random.random(), random.random(), random.random()
    conv = sample.case.convolution
    if whole < 0.25 or not min(conv.batch, conv.c, conv.o, *conv.x):
        return sample
    problem, target = reduced(sample.call.problem()), parse_target(sample.target)
    names = schedules.applicable(problem, target)
    sample = replace(sample, rule=names[int(chosen * len(names))])
    if changed < 0.6:
        return sample
    try:
        candidates = schedules.schedule(problem, target, sample.rule).candidates
    except Exception:  # to be found where the sample is judged
        return sample
    given = {name: random.choice(values) for name, values in candidates.items() if random.random() < 0.5}
    return replace(sample, given=given)
