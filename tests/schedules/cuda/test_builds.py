"""What nvcc makes of known layers: machine code within a GPU's limits, with nothing spilled to memory."""

from __future__ import annotations

import pytest

from tests.cuda_all import cases
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import covering, in_turn
from tests.support.gpu.cases import SM_80, SM_90, SM_90A, TF32, program_of
from tvmconvgrad.compiler.cuda import compiler, toolkit
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies

pytestmark = pytest.mark.skipif(toolkit.find_nvcc() is None, reason="needs nvcc")
REGISTERS = 65536
TARGETS = {"sm_80": SM_80, "sm_90": SM_90, "sm_90a": SM_90A}
LAYERS = {
    "resnet_50 3x3": Convolution(64, 1, 128, 128, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "resnet_50 1x1": Convolution(64, 1, 256, 1024, (14, 14), (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    "resnet_50 strided": Convolution(64, 1, 256, 512, (56, 56), (28, 28), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
    "resnet_50 stem": Convolution(64, 1, 3, 64, (224, 224), (112, 112), (7, 7), (2, 2), (1, 1), (3, 3), (2, 2)),
    "grouped": Convolution(32, 32, 512, 512, (14, 14), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "depthwise": Convolution(64, 144, 144, 144, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "large filters": Convolution(32, 96, 96, 96, (56, 56), (56, 56), (7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
}


def check(program: Program, target: Target, dtype: str) -> None:
    """Compile, and look at what the compiler tells."""
    assert target.arch is not None
    _, facts = compiler.compile_program(program, target)  # TooLarge for too much shared memory
    assert len(facts["usage"]) == len({launch.function for launch in program.launches})
    for launch in program.launches:
        usage = facts["usage"][launch.function]
        assert usage["spilled_bytes"] == 0, launch
        assert not usage["serialized"], launch
        assert usage["registers"] * launch.block[0] <= REGISTERS, launch
    multiplied = target.multiplied(dtype)
    if multiplied != "f32" and "mma" in program.source:
        assert _instruction(multiplied, program) in toolkit.to_ptx(program.source, target.arch)


def _instruction(multiplied: str, program: Program) -> str:
    """What multiplies on tensor cores, as PTX has it; of `wgmma` what follows the number of columns."""
    if "wgmma" in program.source:
        return f"k16.f32.{multiplied}.{multiplied}"
    shape = "m16n8k8" if multiplied == "tf32" else "m16n8k16"
    return f"mma.sync.aligned.{shape}.row.col.f32.{multiplied}.{multiplied}.f32"


@pytest.mark.parametrize("case", covering([case for case in cases() if case.convolution.groups == 1]))
def test_dense_16_bits_go_to_tensor_cores(case: Case) -> None:
    """For every operator, type, layout and rank; tests/cuda_all.py compiles them all."""
    for target in TARGETS.values():
        _, program = program_of(case, "gemm", target=target)
        instruction = "wgmma.mma_async" if target == SM_90A else "mma.sync"
        assert (instruction in program.source) is (case.dtype != "f32")


@pytest.mark.parametrize(
    ("layer", "operator", "dtype", "arch"),
    in_turn(len(LAYERS), list(LAYERS), OPERATORS[:2], ("f32", "f16"), ("sm_80", "sm_90", "sm_90a"), second=2),
)
def test_default_tiles_of_known_layers(layer: str, operator: str, dtype: str, arch: str) -> None:
    scheduled, program = program_of(Case(operator, LAYERS[layer], dtype=dtype), target=TARGETS[arch])
    assert scheduled.rule == ("depthwise" if layer in ("depthwise", "large filters") else "gemm")
    check(program, TARGETS[arch], dtype)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_split_k_that_a_cluster_adds_up(dtype: str) -> None:
    """They are read from other blocks' shared memory, and no kernel is left that adds them up."""
    given = {"split_k": 8, "in_cluster": 8}
    _, program = program_of(Case(OPERATORS[0], LAYERS["resnet_50 3x3"], dtype=dtype), "gemm", given, SM_90)
    assert len(program.launches) == 1
    check(program, SM_90, dtype)
    ptx = toolkit.to_ptx(program.source, "sm_90")
    assert ".reqnctapercluster 8" in ptx and "ld.shared::cluster.v4.f32" in ptx


@pytest.mark.parametrize("operator", OPERATORS[:2])
@pytest.mark.parametrize("layer", ["resnet_50 3x3", pytest.param("resnet_50 strided", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [Copies.TMA, Copies.TMA_MULTICAST_B])
def test_tiles_are_copied_by_tma(layer: str, operator: str, way: Copies) -> None:
    """In one block, and for both of a cluster; the map is read where the kernel is passed it, not copied."""
    given = {"copies": way, "in_cluster": 1}
    _, program = program_of(Case(operator, LAYERS[layer], dtype="f16"), "gemm", given, SM_90A)
    check(program, SM_90A, "f16")
    ptx = toolkit.to_ptx(program.source, "sm_90a")
    assert "cp.async.bulk.tensor.4d.shared::cluster.global" in ptx
    assert (".multicast::cluster" in ptx) is (way is Copies.TMA_MULTICAST_B)
    assert (".explicitcluster" in ptx) is (way is Copies.TMA_MULTICAST_B)
    assert ".local" not in ptx


@pytest.mark.parametrize("operator", OPERATORS[:2])
@pytest.mark.parametrize(
    "layer", ["resnet_50 3x3", pytest.param("resnet_50 stem", marks=pytest.mark.slow), "resnet_50 strided"]
)
def test_default_tiles_for_tf32(layer: str, operator: str) -> None:
    scheduled, program = program_of(Case(operator, LAYERS[layer]), target=TF32)
    assert scheduled.rule == "gemm"
    check(program, TF32, "f32")


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_nothing_is_read_before_the_kernel_before_has_ended(dtype: str) -> None:
    """Loads of what a kernel is passed as constant may be moved, but not before its wait."""
    case = Case(OPERATORS[0], LAYERS["resnet_50 stem"], dtype=dtype)
    _, program = program_of(case, "gemm", {"split_k": 64, "in_cluster": 1}, SM_90)
    assert [launch.early for launch in program.launches] == [False, True, True]
    _, *kernels = toolkit.to_ptx(program.source, "sm_90").split(".entry ")
    waits = [each for each in kernels if "griddepcontrol.wait" in each]
    assert len(waits) == 2
    for each in waits:
        memory = (each.index(word) for word in ("ld.global", "cp.async", "st.global") if word in each)
        assert each.index("griddepcontrol.wait") < min(memory)
