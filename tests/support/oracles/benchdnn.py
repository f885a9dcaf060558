"""Judging benchdnn's descriptors: which run, in which layouts, against what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from tests.support.cases import layouts
from tests.support.cases.case import Case
from tests.support.cases.convolution import operands
from tests.support.oracles import reference
from tests.support.oracles.descriptors import Descriptor

DIRECTIONS = ("w", "d")
IN_DOUBLE = 2e9
"""Up to so many operations PyTorch computes in float64, above in float32: exact too for these integers."""


def case_of(descriptor: Descriptor, direction: str, turn: int) -> Case:
    """The case of a descriptor and direction (w: filter, d: data) in the turn-th choice of layouts.

    Raises Inexpressible.
    """
    operator = "ConvTranspose" if descriptor.deconvolution else "Convolution"
    pairs = [(d, f) for f in layouts.filter_formats(operator) for d in layouts.DATA_FORMATS]
    return descriptor.case(direction, *pairs[turn % len(pairs)])


def wrong_elements(case: Case) -> int:
    """Run a case on integers and count the elements that are not the reference's, bit for bit."""
    from tests.support.oracles import torch_reference
    from tests.support.oracles.torch_reference import torch

    tensors = operands(case.convolution, case.result)
    got = case.run(tensors)
    dtype = torch.float64 if case.convolution.flops <= IN_DOUBLE else torch.float32
    expected = torch_reference.gradient(case.convolution, case.result, tensors, dtype)
    wrong = int(np.count_nonzero(got != expected))
    if wrong:  # PyTorch's float32 path is oneDNN, which has shipped wrong gradients
        wrong = int(np.count_nonzero(got != reference.gradient(case.convolution, case.result, tensors)))
    return wrong


def sample(found: list[Descriptor], count: int, most_flops: float) -> list[tuple[Descriptor, str, int]]:
    """`count` descriptors spread over all files, in alternating directions and layouts; none above `most_flops`."""
    files: dict[str, list[Descriptor]] = {}
    for descriptor in found:
        if descriptor.case("d").convolution.flops <= most_flops:
            files.setdefault(descriptor.source.partition(":")[0], []).append(descriptor)
    quota = _quotas({name: len(members) for name, members in files.items()}, count)
    picked = [d for name, members in files.items() for d in _evenly(members, quota[name])]
    # neighbours differ in direction, and every direction meets every layout
    return [(descriptor, DIRECTIONS[i % 2], i // 2) for i, descriptor in enumerate(picked)]


def _quotas(sizes: dict[str, int], count: int) -> Counter[str]:
    """How many of each file: as equal as the files' sizes allow."""
    quota: Counter[str] = Counter()
    while quota.total() < min(count, sum(sizes.values())):
        for name in (name for name in sizes if quota[name] < sizes[name]):
            if quota.total() < count:
                quota[name] += 1
    return quota


def _evenly(members: list[Descriptor], count: int) -> Iterator[Descriptor]:
    return (members[i * len(members) // count] for i in range(count))
