"""The layers of known networks, whole, as they are compiled for this CPU: in NXC in all types, in NCX in f32 and bf16;
those with three taps also as they are where Winograd's algorithm is allowed.

Integers whose sums f32 holds, so that each element must be PyTorch's in f32, rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.case import DTYPES, OPERATORS, ROLES, Case, assert_same
from tests.support.convolution import operands
from tests.support.layer import convolution
from tests.support.layouts import to_canonical
from tvmconvgrad.layers import SUITES, Layer, suite

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

from tests.support import torch_reference

NXC, NCX = ("NXC", "XIO"), ("NCX", "OIX")
AUTO = "llvm -mcpu=native -algorithm=auto"
WAYS = [(*NXC, "f32"), (*NXC, "f16"), (*NXC, "bf16"), (*NCX, "f32"), (*NCX, "bf16")]
LAYERS = [pytest.param(layer, id=f"{name}/{layer.name}") for name in SUITES for layer in suite(name)]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = cg.get_num_threads()
    cg.set_num_threads(2)
    yield
    cg.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_same_as_pytorch(layer: Layer) -> None:
    conv = convolution(layer)
    for operator in [operator for operator in OPERATORS if operator.startswith(layer.op + "B")]:
        result = ROLES[operator][1]
        tensors = operands(conv, result)
        exact = torch_reference.gradient(conv, result, tensors, torch.float32)
        for way in WAYS:
            with np.errstate(over="ignore"):  # of f16
                assert_same(Case(operator, conv, *way).run(tensors), exact.astype(DTYPES[way[-1]]))
        for way in [(*NXC, "f32"), (*NCX, "f32")] if 3 in conv.k else []:
            case = Case(operator, conv, *way)
            got = replace(case.call, target=AUTO).compile()(*case.arrays(tensors))
            assert_same(to_canonical(got, case.axes(result)), exact)
