"""What nvcc makes of every kind of problem: machine code within a GPU's limits, with nothing spilled to memory."""

from __future__ import annotations

import itertools

import pytest

from tests.support import layouts
from tests.support.case import DTYPES, OPERATORS, Case
from tests.support.convolution import Convolution
from tests.support.gpu_cases import SM_80, SM_90, program_of
from tests.support.sampling import every
from tvmconvgrad.build.cuda import compiler, toolkit
from tvmconvgrad.build.cuda.codegen import Program
from tvmconvgrad.targets import Target

pytestmark = pytest.mark.skipif(toolkit.find_nvcc() is None, reason="needs nvcc")
REGISTERS = 65536
TARGETS = {"sm_80": SM_80, "sm_90": SM_90}
BY_RANK = (
    Convolution(8, 1, 64, 96, (200,), (200,), (5,), (1,), (1,), (2,), (2,)),
    Convolution(8, 1, 64, 96, (28, 28), (14, 14), (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
    Convolution(2, 1, 32, 48, (8, 14, 14), (8, 14, 14), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
)
LAYERS = {
    "resnet_50 3x3": Convolution(64, 1, 128, 128, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "resnet_50 1x1": Convolution(64, 1, 256, 1024, (14, 14), (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    "resnet_50 strided": Convolution(64, 1, 256, 512, (56, 56), (28, 28), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
    "resnet_50 stem": Convolution(64, 1, 3, 64, (224, 224), (112, 112), (7, 7), (2, 2), (1, 1), (3, 3), (2, 2)),
    "grouped": Convolution(32, 32, 512, 512, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "depthwise": Convolution(64, 144, 144, 144, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "large filters": Convolution(32, 96, 96, 96, (56, 56), (56, 56), (7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
}


def everything() -> list[tuple[Case, str]]:
    """Every operator, type, layout and rank, for every architecture."""
    return [
        (Case(operator, conv, data_format, filter_format, dtype), arch)
        for operator in OPERATORS
        for conv, dtype, data_format, filter_format, arch in itertools.product(
            BY_RANK, DTYPES, layouts.DATA_FORMATS, layouts.filter_formats(operator), TARGETS
        )
    ]


def check(program: Program, target: Target, dtype: str) -> None:
    """Compile, and look at what the compiler tells."""
    assert target.arch is not None
    _, facts = compiler.compile_program(program, target)  # TooLarge for too much shared memory
    assert len(facts["usage"]) == len({launch.function for launch in program.launches})
    for launch in program.launches:
        usage = facts["usage"][launch.function]
        assert usage["spilled_bytes"] == 0, launch
        assert usage["registers"] * launch.block[0] <= REGISTERS, launch
    if dtype != "f32" and "mma" in program.source:
        assert f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32" in toolkit.to_ptx(
            program.source, target.arch
        )


@pytest.mark.parametrize(
    "built",
    [
        pytest.param(each, id=f"{each[0]}-{each[1]}", marks=mark.marks)
        for each, mark in zip(everything(), every(37, everything()))
    ],
)
def test_everything_builds(built: tuple[Case, str]) -> None:
    case, arch = built
    scheduled, program = program_of(case, target=TARGETS[arch])
    assert scheduled.rule == "gemm"
    assert ("mma.sync" in program.source) is (case.dtype != "f32")
    check(program, TARGETS[arch], case.dtype)


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("operator", OPERATORS[:2])
@pytest.mark.parametrize(
    "layer",
    [
        "resnet_50 3x3",
        "depthwise",
        *(pytest.param(each, marks=pytest.mark.slow) for each in LAYERS if each not in ("resnet_50 3x3", "depthwise")),
    ],
)
def test_default_tiles_of_known_layers(layer: str, operator: str, dtype: str, arch: str) -> None:
    scheduled, program = program_of(Case(operator, LAYERS[layer], dtype=dtype), target=TARGETS[arch])
    assert scheduled.rule == ("depthwise" if layer in ("depthwise", "large filters") else "gemm")
    check(program, TARGETS[arch], dtype)
