"""The suites: distinct layers, valid gradients, in sizes that one core computes in milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvmconvgrad.layers import SUITES, suite

MOST_FLOPS = 5e9


@pytest.mark.parametrize("name", SUITES)
def test_suites(name: str) -> None:
    layers = suite(name)
    assert 5 <= len(layers) <= 25
    assert len({layer.name for layer in layers}) == len(layers)
    assert len({replace(layer, name="-") for layer in layers}) == len(layers)
    for layer in layers:
        for gradient in (*layer.gradients(), *layer.gradients("NCX", dtype="f16")):
            assert 0 < gradient.problem.flops <= MOST_FLOPS, layer


@pytest.mark.parametrize("name", SUITES)
def test_batch(name: str) -> None:
    flops = [sum(layer.gradients()[0].problem.flops for layer in suite(name, batch)) for batch in (8, 16)]
    assert flops[1] == 2 * flops[0]


def test_what_they_are_for() -> None:
    assert [layer.name for layer in suite("resnet_50")][:2] == ["conv1", "res2a_branch1"]
    assert sum(layer.is_depthwise for layer in suite("mobilenet_v2")) == 10
    assert {layer.groups for layer in suite("resnext_50")} == {1, 32}
    assert {layer.rank for layer in suite("unet_3d")} == {3}
    assert {layer.rank for layer in suite("wavenet")} == {1}
    assert max(layer.dilations for layer in suite("deeplab")) == (18, 18)
    assert {layer.op for layer in suite("dcgan")} == {"Convolution", "ConvTranspose"}
    assert all(layer.is_stem for layer in suite("stem"))


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"suite: 'resnet50' is unknown \(did you mean 'resnet_50'\?\)"):
        suite("resnet50")
    with pytest.raises(ValueError, match="batch: got 0"):
        suite("resnet_50", 0)
    with pytest.raises(TypeError, match=r"batch: got 1\.5"):
        suite("resnet_50", 1.5)  # type: ignore[arg-type]
