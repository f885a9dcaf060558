"""Where a filter's taps are innermost, those of all output phases are packed as one run, if there is room for it."""

from __future__ import annotations

import re
from itertools import pairwise, product
from math import prod
from typing import Any

import pytest
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.sym import Analyzer

import tvmconvgrad as cg
from tests.support.cpu.amx import AMX
from tests.support.cpu.cpus import CPUS
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import parse_target

(LEVEL,) = (cpu for cpu in CPUS if cpu.name == "x86-64-v4")


@pytest.mark.parametrize(
    ("k", "strides", "steps"),
    [((4, 6), (2, 3), [1] * 23), ((4, 2), (2, 1), [1] * 7), ((5, 4), (2, 2), [2, 6, 2, 6, 2])],  # the last in two parts
    ids=str,
)
def test_taps_of_all_output_phases_are_packed_as_one_run(
    k: tuple[int, int], strides: tuple[int, int], steps: list[int]
) -> None:
    from tvmconvgrad import schedules
    from tvmconvgrad.tir.annotations import TRANSPOSE
    from tvmconvgrad.tir.rewriting import nodes, replaced

    shape = (1, 96, *(7 * stride + taps for stride, taps in zip(strides, k)))
    zeros, ones = (0, 0), (1, 1)
    operator = cg.ConvolutionBackpropData(
        strides=strides,
        dilations=ones,
        pads_begin=zeros,
        pads_end=zeros,
        output_shape=shape,
        data_format="NCX",
        filter_format="OIX",
    )
    problem = operator.problem((1, 48, 8, 8), (48, 96, *k), dtype="f32")
    module = schedules.schedule(problem, LEVEL.target, "data-channels", {"packs_filter": 0}).module
    loops = [loop for loop in nodes(module, tirx.For) if TRANSPOSE in loop.annotations]
    run = next(loop for loop in loops if nodes(loop, SBlock)[0].name_hint.startswith("w_"))
    (realize,), (load,) = nodes(run, SBlockRealize), nodes(run, TensorLoad)
    place = tirx.const(0, "int64")
    for index, size in zip(load.indices, load.source.shape):
        place = place * size + index
    place = replaced(place, dict(zip((each.var for each in realize.block.iter_vars), realize.iter_values)))
    begin = {var: tirx.const(0, "int64") for var in nodes(tirx.Evaluate(place), tirx.Var)}
    extents = {loop.loop_var: int(loop.extent) for loop in _nested(run)[: len(k)]}
    assert prod(extents.values()) == run.annotations[TRANSPOSE]  # fused as they are transposed
    steps_of_axes = product(*(range(extent) for extent in extents.values()))
    taps = [{**begin, **{var: tirx.const(at, "int64") for var, at in zip(extents, tap)}} for tap in steps_of_axes]
    places = [int(Analyzer().simplify(replaced(place, tap))) for tap in taps]
    assert [b - a for a, b in pairwise(places)] == steps


def _nested(loop: tirx.For) -> list[tirx.For]:
    """A loop and those that are the only statements inside of it, outermost first."""
    return [loop, *(_nested(loop.body) if isinstance(loop.body, tirx.For) else [])]


@pytest.mark.parametrize("channels", [128, 512])
def test_pairs_of_bf16_taps_of_all_phases_are_packed_by_vectors(channels: int) -> None:
    """As U-Net's up4 (forward): not one after the other, whose place TVM computes by quotients of the fused loop."""
    pads = {"pads_begin": (0, 0), "pads_end": (0, 0)}
    operator = cg.ConvolutionBackpropData(
        strides=(2, 2), dilations=(1, 1), **pads, data_format="NCX", filter_format="OIX"
    )
    problem = operator.problem((1, 2 * channels, 8, 8), (2 * channels, channels, 2, 2), dtype="bf16")
    built = llvm.build(problem, parse_target(AMX), "data-tiles")
    assert "packs_filter=before" in str(built.scheduled)
    assert not re.search(r"\tmovw\t.*, [^,]*\(", built.assembly())


@pytest.mark.parametrize(
    ("sizes", "numbers", "dtype", "target"),
    [
        (
            (32, 4, 256, 3072, (6, 12, 10), (3, 3, 4), (2, 4, 4)),
            {"strides": (2, 4, 2), "pads_begin": (0, 0, 0), "filter_format": "IOX"},
            "f16",
            "llvm -mcpu=x86-64-v4 -mattr=+avx512bf16",
        ),
        (
            (8, 4, 256, 4096, (6, 6, 8), (3, 3, 2), (2, 4, 8)),
            {"strides": (2, 2, 4), "pads_begin": (0, 1, 2), "filter_format": "IOX"},
            "f32",
            "llvm -mcpu=x86-64-v3",
        ),
        (
            (32, 1, 384, 256, (32, 8), (7, 3), (8, 4)),
            {"strides": (4, 2), "pads_begin": (0, 0), "filter_format": "OIX"},
            "f16",
            "llvm -mcpu=x86-64-v4",
        ),
    ],
    ids=["f16 3-D", "f32 3-D", "f16 2-D"],
)
def test_all_panels_and_the_data_have_room(
    sizes: tuple[Any, ...], numbers: dict[str, Any], dtype: str, target: str
) -> None:
    from tvmconvgrad.compiler.llvm import build
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.spec.reducing import reduced

    batch, groups, c, o, x, y, k = sizes
    operator = cg.ConvolutionBackpropData(
        **numbers,
        pads_end=numbers["pads_begin"],
        dilations=(1,) * len(k),
        groups=groups,
        data_format="NCX",
        output_shape=(batch, c, *x),
    )
    w = (o, c // groups, *k) if numbers["filter_format"] == "OIX" else (c // groups, o, *k)
    problem = reduced(operator.problem((batch, o, *y), w, dtype=dtype))
    assert build(problem, parse_target(target)).workspace_bytes <= problem.tensor_bytes
