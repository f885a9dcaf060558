"""A sample of tests/cuda_all.py: every operator, type, layout and rank is built for two architectures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compiler.test_cuda import needs_nvcc
from tests.cuda_all import ARCHITECTURES, cases, compiled
from tests.support.cases.case import OPERATORS, Case

ALL = list(cases())
SAMPLE = ALL[:: len(ALL) // 24 | 1]


def test_the_sample_has_everything() -> None:
    assert {case.operator for case in SAMPLE} == set(OPERATORS)
    assert {case.dtype for case in SAMPLE} == {"f32", "f16", "bf16"}
    assert {case.data_format for case in SAMPLE} == {"NXC", "NCX"}
    assert {case.convolution.rank for case in SAMPLE} == {1, 2, 3}


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_it_is_built_and_fits(case: Case) -> None:
    with ThreadPoolExecutor(1) as pool:
        for arch in ARCHITECTURES:
            _, future = compiled(case, arch, pool)
            image, facts = future.result()
            assert image
            assert all(usage["registers"] <= 255 for usage in facts["usage"].values())
