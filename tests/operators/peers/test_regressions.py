"""Gradients that others have shipped silently wrong, each with where that was reported."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cases.case import DTYPES, OPERATORS, Case, assert_same
from tests.support.cases.convolution import Convolution, Shape, operands
from tests.support.oracles import reference
from tests.support.oracles.descriptors import Descriptor


def dense(batch: int, c: int, o: int, x: Shape, k: Shape, s: Shape, p: Shape, groups: int = 1) -> Convolution:
    """A convolution without dilation and with equal pads at both ends."""
    y = tuple((size + 2 * pad - kernel) // stride + 1 for size, kernel, stride, pad in zip(x, k, s, p, strict=True))
    return Convolution(batch, groups, c, o, x, y, k, s, (1,) * len(k), p, p)


def described(text: str) -> Convolution:
    return Descriptor("", text, deconvolution=False).convolution()


REPORTED = {
    # depthwise and strided: the last row of taps was left out, for 24 channels only
    "pytorch/pytorch#50042": dense(1, 24, 24, (6, 6), (3, 3), (2, 2), (1, 1), groups=24),
    "uxlfoundation/oneDNN#4124": described("g24mb1_ic24oc24_ih6oh3kh3sh2ph1_iw6ow3kw3sw2pw1"),
    "uxlfoundation/oneDNN#4074": described("g8ic8ih5iw1oc8oh2ow1kh5kw1sh2sw1ph2pw0"),
    # torch.nn.grad.convNd_weight: wrong for every rank when groups > 1 (the report names no sizes)
    "pytorch/pytorch#51430-1d": dense(4, 4, 6, (11,), (3,), (2,), (1,), groups=2),
    "pytorch/pytorch#51430-2d": dense(4, 4, 6, (8, 9), (3, 2), (1, 2), (1, 0), groups=2),
    "pytorch/pytorch#51430-3d": dense(3, 6, 9, (5, 6, 7), (2, 3, 2), (2, 1, 1), (0, 1, 1), groups=3),
    # 3-D groups of many channels (the input's size is in an attachment of the report)
    "pytorch/pytorch#68868": dense(1, 720, 720, (5, 9, 6), (2, 2, 2), (4, 4, 1), (1, 1, 1), groups=3),
    # inputs that the last tap does not reach
    "pytorch/pytorch#25101": dense(1, 9, 3, (32, 32), (5, 5), (3, 3), (1, 1)),
    # different strides on the two axes (the report gives no pads); an even filter of 8 or more
    "ROCm/MIOpen#97": dense(2, 2, 1, (50, 55), (3, 3), (1, 2), (0, 0)),
    "ROCm/MIOpen#100": dense(2, 2, 3, (18, 19), (7, 8), (1, 1), (0, 0)),
    # kernel 1 with stride 2: most of the input has no gradient; and fewer channels than a block
    "ROCm/composable_kernel#105": dense(4, 128, 64, (2, 2), (1, 1), (2, 2), (0, 0)),
    "uxlfoundation/oneDNN#6035": dense(32, 4, 8, (32, 32), (1, 1), (2, 2), (0, 0)),
    # short rows, a stride, more channels than a vector
    "fujitsu/oneDNN#43": described("g1ic64iw8oc17ow4kw3sw2pw1"),
    # groups with a stride, depthwise and not
    "ml-explore/mlx#3800-depthwise": dense(2, 16, 16, (14, 14), (7, 7), (2, 2), (3, 3), groups=16),
    "ml-explore/mlx#3800-grouped": dense(2, 16, 32, (8, 8), (1, 1), (2, 2), (0, 0), groups=4),
}
LAYOUTS = (("NXC", "XIO"), ("NCX", "OIX"))
CASES = [
    # always the gradients of Convolution, in one layout; the others only in the full suite
    pytest.param(
        Case(operator, conv, *formats),
        id=f"{report}-{operator}-{'-'.join(formats)}",
        marks=[] if operator.startswith("Convolution") and formats == LAYOUTS[i % 2] else [pytest.mark.slow],
    )
    for i, (report, conv) in enumerate(REPORTED.items())
    for operator in OPERATORS
    for formats in LAYOUTS
]


@pytest.mark.parametrize("case", CASES)
def test_right_here(case: Case) -> None:
    tensors = operands(case.convolution, case.result)
    assert_same(case.run(tensors), reference.gradient(case.convolution, case.result, tensors))


@pytest.mark.parametrize("case", CASES)
def test_same_as_pytorch_in_float64(case: Case) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
    from tests.support.oracles import torch_reference

    tensors = operands(case.convolution, case.result)
    assert_same(case.run(tensors), torch_reference.gradient(case.convolution, case.result, tensors))


def test_the_first_reports_own_numbers() -> None:
    """pytorch/pytorch#50042 prints what its ones should have given."""
    case = Case("ConvolutionBackpropFilters", REPORTED["pytorch/pytorch#50042"], "NCX", "OIX")
    ones = {name: np.ones(case.convolution.shapes[name], np.float32) for name in "yx"}
    expected = np.broadcast_to(np.array([[4, 6, 6], [6, 9, 9], [6, 9, 9]], np.float32), (24, 1, 3, 3))
    assert_same(case.run(ones), expected)


def test_one_column_that_meets_anything() -> None:
    """Of f16 in NCX, LLVM made other shuffles than were asked for where part of a transposition is not used."""
    y = np.arange(-40, 40).reshape(2, 8, 5, 1) % 5 - 2
    delta = np.arange(240).reshape(2, 8, 5, 3) % 7 - 3
    op = cg.ConvolutionBackpropFilters(
        strides=(1, 1),
        dilations=(1, 1),
        pads_begin=(1, 1),
        pads_end=(1, 1),
        filter_shape=(8, 8, 3, 1),
        data_format="NCX",
        filter_format="OIX",
    )
    padded = np.pad(y[..., 0], ((0, 0), (0, 0), (1, 1)))
    expected = np.stack([np.einsum("nch,noh->oc", padded[:, :, k : k + 5], delta[..., 1]) for k in range(3)], -1)
    for dtype, target in product(DTYPES.values(), (None, "llvm -mcpu=x86-64-v3")):
        assert_same(op(y.astype(dtype), delta.astype(dtype), target=target), expected[..., None].astype(dtype))
