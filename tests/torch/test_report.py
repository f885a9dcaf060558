"""The report: a row for each part of each layer, and layers that differ look different."""

from __future__ import annotations

import pytest
import torch

import tvmconvgrad.torch as cgt

X, W = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3)


def test_layers_that_differ_in_a_number_look_different() -> None:
    x, w = torch.ones(2, 4, 8, 8), torch.ones(4, 4, 3, 3)
    usual = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "output_padding": [0, 0], "groups": 1}
    plain = [{}, {"stride": [2, 1]}, {"stride": [1, 2]}, {"padding": [1, 0]}, {"padding": [1, 1]}, {"dilation": [1, 2]}]
    transposed = [{}, {"stride": [2, 2]}, {"stride": [2, 2], "output_padding": [1, 0]}, {"padding": [1, 1]}]
    with cgt.enabled(layers=lambda conv: False):
        for changed in plain:
            torch.ops.aten.convolution(x, w, None, transposed=False, **usual | changed)
        torch.ops.aten.convolution(x, w[:, :2], None, transposed=False, **usual | {"groups": 2})
        torch.ops.aten.convolution(x, w[:, :1], None, transposed=False, **usual | {"groups": 4})
        for changed in transposed:
            torch.ops.aten.convolution(x, w, None, transposed=True, **usual | changed)
        layers = [row.layer for row in cgt.report().rows]
    assert len(layers) == len(plain) + len(transposed) + 2
    assert len(set(layers)) == len(layers)
    assert "conv2d 4->4 3x3, 2x8x8, padding 1x0" in layers
    assert "conv_transpose2d 4->4 3x3, 2x8x8, stride 2x2, output_padding 1x0" in layers


def test_layers_that_differ_in_memory_or_bias_look_different() -> None:
    last, swapped = X.contiguous(memory_format=torch.channels_last), X.transpose(2, 3)
    grad = torch.ones(2, 5, 4, 4)
    numbers = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    with cgt.enabled():
        for input, weight, bias in ((X, W, None), (X, W, torch.ones(5)), (last, W, None), (swapped, W, None)):
            torch.conv2d(input, weight, bias)
        torch.ops.aten.convolution_backward(grad, swapped, W, [5], *numbers, [True] * 3)
        torch.ops.aten.convolution_backward(grad[:, :, :1, :1].expand(grad.shape), X, W, [5], *numbers, [True] * 3)
        rows = [(row.layer.removeprefix("conv2d 4->5 3x3, 2x6x6"), row.layout, row.part) for row in cgt.report().rows]
    assert rows == [
        ("", "contiguous", "forward"),
        (", bias", "contiguous", "forward"),
        ("", "channels last, weight contiguous", "forward"),
        ("", "contiguous, input copied", "forward"),
        ("", "contiguous", "data gradient"),
        ("", "contiguous, input copied", "weights gradient"),
        ("", "contiguous, grad_output copied", "data gradient"),
        ("", "contiguous, grad_output copied", "weights gradient"),
    ]


@pytest.mark.usefixtures("at_once")
def test_report_has_a_line_for_each_part() -> None:
    with cgt.enabled():
        w = W.clone().requires_grad_()
        torch.conv2d(X, w).sum().backward()
        torch.conv2d(X.double(), W.double())
        report = cgt.report()
    rows = [(row.layer, row.layout, row.dtype, row.part, row.calls) for row in report.rows]
    assert rows == [
        ("conv2d 4->5 3x3, 2x6x6", "contiguous", "f32", "forward", 1),
        ("conv2d 4->5 3x3, 2x6x6", "contiguous", "float64", "forward", 1),
        ("conv2d 4->5 3x3, 2x6x6", "contiguous, grad_output copied", "f32", "weights gradient", 1),
    ]
    assert "type float64" in str(report)
    assert cgt.report().notes == ("not enabled: PyTorch computes everything",)
