"""use: operators find their kernels in bundles first, and a missing one is built, or an error that says how to."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import TARGETS, example
from tests.deploy.conftest import Built
from tests.support.cases.case import assert_same
from tvmconvgrad.bundles import registry
from tvmconvgrad.layers import Layer
from tvmconvgrad.runtime.python_calls import NOT_PLAIN

OP = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 17, 25)
)
FIRST, SECOND = (2, 9, 8, 17), (2, 9, 8, 25)


@pytest.fixture(autouse=True)
def nothing_in_use() -> Iterator[None]:
    registry.forget()
    yield
    registry.forget()


def test_operators_find_their_kernels_there(built: Built) -> None:
    first, second, wanted = example(built.gradients["dense_3x3_f32_filters"])
    assert_same(OP(first, second), wanted)  # built
    compiled = OP.compile(FIRST, SECOND).function
    bundle = cg.use(built.folder)
    bundled = bundle["dense_3x3_f32_filters"].function
    assert OP.compile(FIRST, SECOND).function is bundled is not compiled
    assert OP.compile(FIRST, SECOND).target == bundle.target
    assert_same(OP(first, second), wanted)
    assert next(reversed(OP._seen.values())).function is bundled  # not the one of before
    registry.forget()
    assert OP.compile(FIRST, SECOND).function is compiled


def test_plain_arrays_go_the_quick_way(built: Built) -> None:
    for name, kernel in cg.load(built.folder).items():
        first, second, wanted = example(built.gradients[name])
        out = np.zeros_like(wanted)
        assert kernel._quick is not None
        assert kernel._quick(first, second, out, None) == 0
        assert_same(out, wanted)
        assert kernel._quick(first, second, out[None], None) == NOT_PLAIN


def test_a_target_or_schedule_is_taken_at_its_word(built: Built) -> None:
    bundle = cg.use(built.folder, build=False)
    assert OP.compile(FIRST, SECOND, target=str(bundle.target)).function
    assert OP.compile(FIRST, SECOND, target="llvm -mcpu=native").function
    other = next(target for target in [*TARGETS, "llvm -mcpu=znver3"] if target != str(bundle.target))
    with pytest.raises(cg.MissingKernel, match="building is forbidden"):
        OP.compile(FIRST, SECOND, target=other)
    name = OP.compile(FIRST, SECOND).schedule.partition("(")[0]
    assert OP.compile(FIRST, SECOND, schedule=name).function
    with pytest.raises(cg.MissingKernel):
        OP.compile(FIRST, SECOND, schedule="other")


def test_the_one_used_last_comes_first(built: Built, tmp_path: Path) -> None:
    layer = built.gradients["dense_3x3_f32_filters"].layer
    other = cg.build([layer], tmp_path / "other", name="other", only="filters")
    one, two = cg.use(built.folder), cg.use(other)
    assert two.find(OP.problem(FIRST, SECOND)) is not None
    assert OP.compile(FIRST, SECOND).target == two.target
    assert OP.compile(FIRST, SECOND).function is two["dense_3x3_filters"].function
    assert cg.use(one) is one
    assert OP.compile(FIRST, SECOND).function is one["dense_3x3_f32_filters"].function


def test_what_no_bundle_has_is_built(built: Built) -> None:
    functions = {kernel.function for kernel in cg.use(built.folder).values()}
    assert OP.compile((1, 9, 8, 17), (1, 9, 8, 25)).function not in {None, *functions}


@pytest.mark.parametrize("word", ["never", " never "])
def test_the_environment_forbids_building(word: str, built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_BUILD", word)
    with pytest.raises(cg.MissingKernel, match="in no bundle in use \\(none\\), and building is forbidden by TVMCONV"):
        OP.compile((1, 9, 8, 17), (1, 9, 8, 25))
    cg.use(built.folder)
    assert OP.compile(FIRST, SECOND).function
    cg.use(built.folder, build=True)
    assert OP.compile((1, 9, 8, 17), (1, 9, 8, 25)).function
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "sometimes")
    registry.forget()
    with pytest.raises(ValueError, match="TVMCONVGRAD_BUILD: got 'sometimes', expected never or allowed"):
        OP.compile(FIRST, SECOND)


def test_an_empty_sum_needs_no_kernel(built: Built) -> None:
    cg.use(built.folder, build=False)
    op = cg.ConvolutionBackpropFilters(strides=(1,), dilations=(1,), auto_pad="valid", filter_shape=(1, 2, 3))
    assert (op(np.ones((0, 4, 2), np.float32), np.ones((0, 4, 3), np.float32)) == 0).all()


def test_use_says_what_it_expects(built: Built, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="build: got 'no' of type str"):
        cg.use(built.folder, build="no")  # type: ignore[arg-type]
    with pytest.raises(cg.BundleError, match=r"manifest\.json: is missing"):
        cg.use(tmp_path)
    with pytest.raises(cg.BundleError, match="is no folder"):
        cg.use(built.folder / "manifest.json")


PADS = {"dilations": (1, 1), "pads_begin": (1, 0), "pads_end": (0, 1)}
MISSING: list[tuple[Any, tuple[int, ...], tuple[int, ...], str]] = [
    (cg.ConvolutionBackwardWeights(strides=(2, 1), weights_shape=(4, 3, 2, 2), weights_format="OIX", groups=2, **PADS),
     (1, 5, 6, 6), (1, 3, 6, 4), "bf16"),
    (cg.ConvolutionBackpropData(strides=(2, 2), dilations=(1, 2), auto_pad="same_upper", output_shape=(1, 6, 5, 3)),
     (1, 3, 3, 4), (3, 2, 3, 4), "f32"),
    (cg.ConvTransposeBackpropData(strides=(2,), dilations=(1,), auto_pad="same_lower", output_padding=(1,),
                                  data_format="NCX", filter_format="IOX"), (1, 2, 8), (3, 2, 3), "f16"),
    (cg.ConvTransposeBackpropFilters(strides=(2,), dilations=(1,), pads_begin=(1,), pads_end=(1,),
                                     filter_shape=(4, 3, 2)), (2, 4, 3), (2, 8, 2), "f32"),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(MISSING)))
def test_the_error_says_how_to_build_it(
    place: int, invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, first, second, dtype = MISSING[place]
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "never")
    with pytest.raises(cg.MissingKernel) as error:
        op.compile(first, second, dtype=dtype)
    about, _, layers, _, command = str(error.value).splitlines()
    assert about.startswith(str(op.problem(first, second, dtype=dtype)))
    monkeypatch.chdir(tmp_path)
    Path("missing.json").write_text(layers)
    assert Layer(**json.loads(layers)["layers"][0])
    result = invoke(*shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    (kernel,) = cg.use("missing").values()
    assert op.compile(first, second, dtype=dtype).function is kernel.function
