"""All of ResNet-50's gradients in one bundle, checked by a C program against PyTorch's results in files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import tvmconvgrad as cg
from tests.deploy.bundles import check_program, run, write_examples
from tests.support.oracles import torch_reference
from tvmconvgrad.layers import suite

BATCH = 2


@pytest.mark.slow
def test_every_kernel_equals_pytorch(tmp_path: Path) -> None:
    layers = suite("resnet_50", BATCH)
    cg.build("resnet_50", tmp_path / "bundle", batch=BATCH)
    examples = tmp_path / "examples"
    examples.mkdir()
    gradients = {f"{layer.name}_{one.kind}": one for layer in layers for one in layer.gradients()}
    write_examples(examples, gradients, torch_reference.gradient)
    check_program(tmp_path / "bundle", "resnet_50", tmp_path / "check", "-O2")
    for threads in (1, 2):
        assert run([tmp_path / "check", examples, threads, 1]).startswith(f"{len(gradients)} kernels for ")
    assert list(cg.load(tmp_path / "bundle")) == list(gradients)
