"""Under auto_pad same_*, one output_shape goes with stride 1, and need not be given: the input's, as in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import tvmconvgrad as cg

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower"])
@pytest.mark.parametrize(("kernel", "dilation"), [(5, 1), (3, 2)])
def test_it_is_pytorchs(auto_pad: str, kernel: int, dilation: int) -> None:
    rng, size = np.random.default_rng(0), 5
    delta, weights = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 4, size), (4, 3, kernel)))
    op = cg.ConvolutionBackpropData(
        strides=(1,), dilations=(dilation,), auto_pad=auto_pad, data_format="NCX", filter_format="OIX"
    )
    y = torch.zeros(2, 3, size, requires_grad=True)
    x = torch.conv1d(y, torch.from_numpy(weights), padding="same", dilation=dilation)
    x.backward(torch.from_numpy(delta))
    np.testing.assert_array_equal(op(delta, weights), y.grad.numpy())


def test_with_a_stride_several_fit() -> None:
    op = cg.ConvolutionBackpropData(strides=(1, 3), dilations=(1, 1), auto_pad="same_upper")
    told = (
        "output_shape: missing; required with auto_pad same_upper, since sizes 13 to 15 of spatial axis 1 fit strides 3"
    )
    with pytest.raises(ValueError, match=told):
        op.problem((1, 4, 5, 2), (3, 3, 2, 2))
    for size in (13, 14, 15):
        op.problem((1, 4, 5, 2), (3, 3, 2, 2), (1, 4, size, 2))
