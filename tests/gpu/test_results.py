"""Every kernel of the bundles on a GPU: exact on integers, near PyTorch on random numbers, the same on every run."""

from __future__ import annotations

from typing import Any

import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import example
from tests.gpu.bundles import BUNDLES, gradients
from tests.support.cases.case import assert_same

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

KERNELS = pytest.mark.parametrize(
    ("bundle", "name"), [(bundle, name) for bundle in BUNDLES for name in gradients(bundle)], indirect=["bundle"]
)


def tensor(array: Any) -> Any:
    """On the GPU; by way of f32, which NumPy and PyTorch share with bf16."""
    kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return torch.from_numpy(array.astype("float32")).to("cuda", kinds[array.dtype.name])


@KERNELS
def test_sums_of_integers_are_exact(name: str, bundle: cg.Bundle) -> None:
    gradient = gradients(bundle.manifest.name)[name]
    first, second, expected = example(gradient)
    out = torch.full(expected.shape, float("nan"), device="cuda", dtype=tensor(expected).dtype)
    assert bundle[name](tensor(first), tensor(second), out=out) is out
    assert_same(out.float().cpu().numpy(), expected.astype("float32"))


@KERNELS
def test_random_numbers_and_the_same_bits(name: str, bundle: cg.Bundle) -> None:
    from tvmconvgrad.bench.gpu.checking import check, make_inputs
    from tvmconvgrad.bench.job import Job

    kernel = bundle[name]
    job = Job.of(kernel.problem)
    for seed in range(2):
        checked = check(kernel, job, make_inputs(job, "cuda", seed), "cuda", kernel.problem.flops)
        assert checked.fault is None
