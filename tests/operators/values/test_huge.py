"""Tensors of more than 2**31 elements, of which only some rows hold anything: their indices exceed 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.cases.case import Case, assert_same
from tests.support.cases.convolution import Array, Convolution, operands
from tests.support.oracles import reference

CHANNELS, STEP = 16, 4096
ROWS = 2**31 // CHANNELS + 2 * STEP
"""Of x; every STEP-th has a tap."""
HUGE = Convolution(1, 1, CHANNELS, 3, (ROWS,), (ROWS // STEP,), (2,), (STEP,), (1,), (0,), (0,))
SMALL = Convolution(1, 1, CHANNELS, 3, (2 * HUGE.y[0],), HUGE.y, (2,), (2,), (1,), (0,), (0,))
"""The same taps on the same rows, without those between."""

pytestmark = pytest.mark.slow


def available_bytes() -> int:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        pytest.skip("no /proc/meminfo to see how much memory there is")
    lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
    return 1024 * int(lines["MemAvailable"].split()[0])


def tapped(huge: Array) -> Array:
    """The rows that have a tap, a view: (1, positions, 2, channels)."""
    steps: Array = huge[:, : HUGE.y[0] * STEP].reshape(1, HUGE.y[0], STEP, CHANNELS)[:, :, :2]
    return steps


def spread(small: Array) -> Array:
    """The x that has SMALL's rows where there are taps; zeros take no memory until they are written."""
    huge = np.zeros((1, ROWS, CHANNELS), np.float16)
    tapped(huge)[...] = small.reshape(1, HUGE.y[0], 2, CHANNELS)
    return huge


@pytest.mark.parametrize(
    "operator", ["ConvolutionBackpropFilters", "ConvTransposeBackpropData", "ConvolutionBackpropData"]
)
def test_more_than_2_to_the_31_elements(operator: str) -> None:
    case, same = (Case(operator, conv, dtype="f16") for conv in (HUGE, SMALL))
    kernel = case.call.compile()
    needed = 2 * ROWS * CHANNELS + kernel.workspace_bytes + 2**30
    if available_bytes() < needed:
        pytest.skip(f"needs {needed / 2**30:.1f} GiB of memory")
    tensors = {name: array.clip(-2, 2) for name, array in operands(SMALL, same.result).items()}
    expected = reference.gradient(SMALL, same.result, tensors).transpose(same.axes(same.result)).astype(np.float16)
    pairs = zip(case.inputs, same.arrays(tensors), strict=True)
    inputs = [spread(array) if name == "x" else array for name, array in pairs]
    out = np.empty(case.shape(case.result), np.float16)
    out[:, ::1021] = 7  # in every page of memory
    assert kernel(*inputs, out=out) is out
    if case.result == "x":
        assert np.count_nonzero(out.view(np.uint16)) == np.count_nonzero(expected)
        out = tapped(out).reshape(expected.shape)
    assert_same(out, expected)
