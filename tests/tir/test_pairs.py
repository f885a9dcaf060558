"""The instructions that add two products of bf16: where they are generated, and that their sums stay in registers."""

from __future__ import annotations

import pytest

from tests.support.cases.case import OPERATORS, ROLES, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import in_turn
from tests.support.cpu.assembly import count, saves, simple_loops
from tvmconvgrad.compiler import llvm
from tvmconvgrad.machines.targets import Target, parse_target

ADDS = r"vdpbf16ps\s.*%zmm|bfdot\s+v\d+\.4s"
SHARED_BY_ELEMENT = r"bfdot\s+v\d+\.4s, v\d+\.8h, v\d+\.2h\[0\]"
BROADCASTS = r"\t(?:ld1r|dup)\t"
RULES = {"w": ("weights-o", "weights-c"), "x": ("data-channels",), "y": ("data-channels",)}


def code(
    mcpu: str,
    operator: str,
    rule: str,
    dtype: str = "bf16",
    batch: int = 2,
    rows: int = 10,
    dilation: int = 1,
    data_format: str = "NXC",
    groups: int = 1,
) -> str:
    apart = (dilation, dilation)
    conv = Convolution(batch, groups, 64, 64, (rows, 11), (rows, 11), (3, 3), (1, 1), apart, apart, apart)
    problem = Case(operator, conv, data_format, dtype=dtype).call.problem()
    return llvm.build(problem, target_of(mcpu), rule).assembly()


def target_of(mcpu: str) -> Target:
    """A CPU by its name, with features."""
    architecture = "aarch64" if mcpu.startswith(("neoverse", "cortex")) else "x86_64"
    return parse_target(f"llvm -mcpu={mcpu} -mtriple={architecture}-linux-gnu")


@pytest.mark.parametrize(
    ("mcpu", "operator"),
    in_turn(
        2,
        ("cooperlake", "znver4", "sapphirerapids -mtune=generic-512", "neoverse-v1", "cortex-a76 -mattr=+bf16"),
        OPERATORS,
    ),
)
def test_cpus_that_have_it(mcpu: str, operator: str) -> None:
    for rule in RULES[ROLES[operator][1]]:
        found = code(mcpu, operator, rule)
        assert count(found.splitlines(), ADDS)
        loops = [loop for loop in simple_loops(found) if count(loop, ADDS)]
        assert sum(map(saves, loops)) <= 0.25 * sum(count(loop, ADDS) for loop in loops)


@pytest.mark.parametrize("mcpu", ("cooperlake", "znver4", "neoverse-v1"))
@pytest.mark.parametrize(
    ("operator", "rule", "groups"),
    [("ConvolutionBackpropFilters", "weights-rows", 64), ("ConvolutionBackpropData", "data-positions", 1)],
)
def test_vectors_over_positions(operator: str, rule: str, groups: int, mcpu: str) -> None:
    found = code(mcpu, operator, rule, data_format="NCX", groups=groups)
    assert count(found.splitlines(), r"vdpbf16ps\s|bfdot\s")
    assert not count(found.splitlines(), r"vfmadd\d+ps\s|fmla\s+v\d+\.4s")


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("mcpu", ["neoverse-n2", "neoverse-v2"])
def test_a_shared_pair_is_an_element_of_a_vector(mcpu: str, operator: str) -> None:
    """Broadcasting it would take one of the slots of instructions on vectors."""
    for rule in RULES[ROLES[operator][1]]:
        found = code(mcpu, operator, rule)
        lines = found.splitlines()
        assert count(lines, SHARED_BY_ELEMENT) == count(lines, ADDS) > 0
        assert not any(count(loop, BROADCASTS) for loop in simple_loops(found) if count(loop, ADDS))


@pytest.mark.parametrize("operator", ["ConvolutionBackpropData", "ConvTransposeBackpropData"])
@pytest.mark.parametrize("mcpu", ["znver4", "neoverse-v1"])
@pytest.mark.parametrize(("channels", "paired"), [(8, True), (4, False)])
def test_groups_of_several_channels(channels: int, paired: bool, mcpu: str, operator: str) -> None:
    size = 16 * channels
    conv = Convolution(2, 16, size, size, (10, 11), (10, 11), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    problem = Case(operator, conv, dtype="bf16").call.problem()
    found = llvm.build(problem, target_of(mcpu), "data-groups").assembly()
    adds = count(found.splitlines(), ADDS)
    assert bool(adds) == paired
    assert not paired or saves(found.splitlines()) <= 0.25 * adds


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("mcpu", "dtype"), [
    ("x86-64-v4", "bf16"),
    ("sapphirerapids", "bf16"),  # which starts four FMAs in the time of one such instruction
    ("znver4", "f16"),
    ("znver4", "f32"),
    ("neoverse-n1", "bf16"),
    ("neoverse-v1", "f16"),
])  # fmt: skip
def test_cpus_and_types_that_do_not(mcpu: str, dtype: str, operator: str) -> None:
    for rule in RULES[ROLES[operator][1]]:
        assert not count(code(mcpu, operator, rule, dtype).splitlines(), ADDS)


@pytest.mark.parametrize(
    ("batch", "rows", "dilation", "paired"),
    [
        (1, 10, 1, True),
        (3, 11, 1, True),
        (2, 1, 1, True),
        (3, 1, 1, False),
        (1, 11, 6, True),  # taps meet 21 of 33 rows, in pairs it is 18
        (1, 11, 8, False),  # 17
        (1, 10, 8, False),
        (2, 11, 8, True),
    ],
)
def test_filters_take_pairs_of_images_or_of_bands(batch: int, rows: int, dilation: int, paired: bool) -> None:
    found = code("znver4", "ConvolutionBackpropFilters", "weights-o", batch=batch, rows=rows, dilation=dilation)
    assert ("vdpbf16ps" in found) == paired
