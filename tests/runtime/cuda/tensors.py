"""What tests call on a GPU that is not there: operators with their results, and tensors that only DLPack tells of."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmconvgrad as cg
from tests.support.cases import layouts
from tests.support.cases.case import Case
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.gpu.libraries import aligned
from tests.support.memory.capsules import READ_ONLY, capsule
from tests.support.oracles import reference

CONV = Convolution(2, 1, 4, 5, (7, 6), (4, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0))
DATA = Case("ConvolutionBackpropData", CONV)
FILTERS = Case("ConvolutionBackpropFilters", CONV)


class Foreign:
    """A tensor on a GPU that only DLPack tells of. Its memory is an array's."""

    def __init__(self, array: Array, gpu: int = 0, **facts: Any) -> None:
        self.array, self.gpu = array, gpu
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.gpu

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None) -> Any:
        self.streams.append(stream)
        flags = 0 if self.array.flags.writeable else READ_ONLY
        return capsule(self.array, device_type=2, device_id=self.gpu, flags=flags)


def example(case: Case) -> tuple[Any, list[Array], Array]:
    """The operator, its inputs, and the result that they must have."""
    tensors = operands(case.convolution, case.result)
    expected = layouts.from_canonical(
        reference.gradient(case.convolution, case.result, tensors), case.axes(case.result)
    )
    inputs = [aligned(np.ascontiguousarray(array)) for array in case.arrays(tensors)]
    return getattr(cg, case.operator)(**case.attributes), inputs, np.ascontiguousarray(expected.astype(np.float32))


def empty(like: Array) -> Array:
    return aligned(np.full(like.shape, np.nan, np.float32))
