"""Matrix products of f32 in TF32, where the target's `fpmath_mode` lets them: on an emulated GPU."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.schedules.cuda.test_gemm import LONG, WIDE
from tests.support.cases import layouts
from tests.support.cases.by_rule import cases
from tests.support.cases.case import OPERATORS, Case, assert_same
from tests.support.cases.convolution import Array, operands
from tests.support.cases.sampling import covering, in_turn
from tests.support.gpu.cases import SM_90, TF32, check, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator
from tests.support.oracles import reference
from tvmconvgrad import schedules
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.schedules.cuda.gemm.tiles import TENSOR_TILES

pytestmark = needs_emulator
MMA = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"


def rounded(values: Array, to_even: bool) -> Array:
    """To the nearest number of 11 significant bits, ties to even or away from zero."""
    fraction, exponent = np.frexp(values.astype(np.float64))
    units = fraction * 2**11
    nearest = np.rint(units) if to_even else np.copysign(np.floor(np.abs(units) + 0.5), units)
    return np.ldexp(nearest / 2**11, exponent).astype(np.float32)


@pytest.mark.parametrize("case", covering([case.with_dtype("f32") for case in cases()[::3]]))
def test_sums_of_integers_are_exact(emulator: Emulator, case: Case) -> None:
    if not takes("gemm", case, TF32):
        pytest.skip("the sum is no matrix product")
    check(emulator, case, "gemm", target=TF32)


@pytest.mark.parametrize(("operator", "tile"), in_turn(8, (0, 1, 3), range(len(TENSOR_TILES)), second=4))
def test_each_tile(emulator: Emulator, operator: int, tile: int) -> None:
    case = Case(OPERATORS[operator], WIDE, "NXC", ("XIO", "OIX")[tile % 2])
    given = {"tile": tile, "block_k": (16, 32)[tile % 2]}
    stages = program_of(case, "gemm", given, TF32)[0].candidates["stages"]
    check(emulator, case, "gemm", {**given, "stages": stages[tile % len(stages)]}, TF32)


def test_a_split_sum(emulator: Emulator) -> None:
    case = Case(OPERATORS[0], LONG)
    split_k = max(program_of(case, "gemm", target=TF32)[0].candidates["split_k"])
    assert split_k > 1
    check(emulator, case, "gemm", {"split_k": split_k}, TF32)


@pytest.mark.parametrize(
    ("operator", "of", "architecture"),
    in_turn(2, OPERATORS, (0, 1), (800, 900)),  # the quick lane has each pair of operator, input and architecture
)
def test_both_inputs_are_rounded_to_the_nearest(emulator: Emulator, operator: str, of: int, architecture: int) -> None:
    """The elements of one input lie half way between TF32's, and those of the other are signs: sums are exact."""
    case = Case(operator, WIDE)
    tensors = {name: np.sign(tensor) for name, tensor in operands(WIDE, case.result).items()}
    name = case.inputs[of]
    steps = np.random.default_rng(1).integers(0, 512, tensors[name].shape)
    tensors[name] = (tensors[name] * (1 + (2 * steps + 1) * 2.0**-11)).astype(np.float32)
    nearest = rounded(tensors[name], to_even=architecture == 900)
    assert np.count_nonzero(nearest != tensors[name]) == np.count_nonzero(tensors[name])
    expected = reference.gradient(WIDE, case.result, {**tensors, name: nearest})
    _, program = program_of(case, "gemm", target=TF32)
    program = replace(program, source=f"#define __CUDA_ARCH__ {architecture}\n{program.source}")
    for got in emulator.run(program, case.arrays(tensors), case.shape(case.result), ["forward late"]):
        assert_same(layouts.to_canonical(got, case.axes(case.result)), expected.astype(np.float32))


def test_what_is_not_rounded_is_seen(emulator: Emulator) -> None:
    """The tensor cores take no notice of the bits that TF32 lacks: they would round towards zero."""
    case = Case(OPERATORS[1], WIDE)
    _, program = program_of(case, "gemm", target=TF32)
    faulty = replace(program, source=re.sub(r"\n *tvmconvgrad_round_tf32\(.*;", "", program.source))
    assert faulty.source != program.source
    tensors = {name: tensor + np.float32(2.0**-12) for name, tensor in operands(WIDE, case.result).items()}
    with pytest.raises(AssertionError, match="bits that TF32 lacks"):
        emulator.run(faulty, case.arrays(tensors), case.shape(case.result), ["forward late"])


def test_it_is_asked_for() -> None:
    for dtype, target in itertools.product(("f32", "f16", "bf16"), (SM_90, TF32)):
        _, program = program_of(Case(OPERATORS[0], WIDE, dtype=dtype), "gemm", target=target)
        assert (MMA in program.source) is (dtype == "f32" and target is TF32)
        assert ("tf32" in program.source) is (dtype == "f32" and target is TF32)


def test_tensor_cores_are_expected_to_be_faster() -> None:
    problem = Case(OPERATORS[0], LONG).call.problem()
    strict, tf32 = (schedules.rules(target)[0].cost(problem) for target in (SM_90, TF32))
    assert strict is not None
    assert tf32 is not None
    assert tf32 < strict


def test_a_gpu_without_tf32_sums_in_f32() -> None:
    _, program = program_of(Case(OPERATORS[0], WIDE), target=parse_target("cuda -arch=sm_75 -fpmath_mode=tf32"))
    assert "tf32" not in program.source
