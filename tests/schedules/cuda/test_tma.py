"""Tiles that TMA copies, for one block or by multicast for two: on an emulated GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.cases.by_rule import cases
from tests.support.cases.case import OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.sampling import covering, every, in_turn
from tests.support.gpu.cases import SM_90, SM_90A, changed, check, check_program, program_of, takes
from tests.support.gpu.emulator import Emulator, needs_emulator
from tvmconvgrad.compiler.cuda.codegen import Program
from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.schedules.cuda.gemm.copies.base import Copies
from tvmconvgrad.schedules.cuda.gemm.tiles import WARPGROUP_TILES, GemmTile

pytestmark = needs_emulator
TMA_MODES = (Copies.TMA, Copies.TMA_MULTICAST_B, Copies.TMA_MULTICAST_A)
TYPES = ("f16", "bf16")
# channels that are whole lines where lines must be whole, and others
SQUARE = Convolution(2, 1, 64, 192, (9, 10), (9, 10), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
TAILS = Convolution(3, 1, 64, 72, (7, 11), (7, 10), (3, 2), (1, 1), (1, 1), (1, 0), (1, 0))
STRIDED = Convolution(2, 1, 128, 64, (11, 12), (6, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0))
# four phases of a data gradient with as many taps, which begin at two positions
PHASES = Convolution(2, 1, 64, 64, (11, 12), (6, 6), (4, 2), (2, 2), (1, 1), (1, 1), (2, 0))
DILATED = Convolution(1, 1, 64, 128, (9, 9), (5, 9), (3, 3), (1, 1), (2, 1), (0, 1), (0, 1))
POINTWISE = Convolution(3, 1, 192, 64, (5, 6), (5, 6), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
LINE = Convolution(3, 1, 64, 64, (41,), (19,), (5,), (2,), (1,), (1,), (0,))
CUBE = Convolution(2, 1, 64, 64, (4, 5, 6), (4, 5, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1))
LAYERS = {
    "square": SQUARE,
    "tails": TAILS,
    "strided": STRIDED,
    "phases": PHASES,
    "dilated": DILATED,
    "pointwise": POINTWISE,
    "line": LINE,
    "cube": CUBE,
}
SMALL = WARPGROUP_TILES.index(GemmTile(64, 64, (1, 1)))
TWO_GROUPS = WARPGROUP_TILES.index(GemmTile(128, 64, (2, 1)))


def swapped(layer: Convolution) -> Convolution:
    """The layer with channels c and o exchanged: A's channels are c, and those of a data gradient o."""
    return replace(layer, c=layer.o, o=layer.c)


def by_tma(case: Case, **given: int) -> Program:
    """The program, which copies by TMA."""
    scheduled, program = program_of(case, "gemm", given, SM_90A)
    assert scheduled.plan["copies"] in TMA_MODES
    return program


@pytest.mark.parametrize(("name", "operator", "mode"), in_turn(5, list(LAYERS), (0, 1, 3), TMA_MODES, second=3))
def test_results_are_exact(emulator: Emulator, name: str, operator: int, mode: Copies) -> None:
    layer = LAYERS[name] if operator != 1 else swapped(LAYERS[name])
    turn = operator + mode + list(LAYERS).index(name)
    case = Case(OPERATORS[operator], layer, "NXC", ("XIO", "OIX")[turn % 2], TYPES[turn // 2 % 2])
    given = {"tile": SMALL if turn % 3 else TWO_GROUPS, "block_k": (64, 32)[turn % 2], "copies": mode}
    scheduled, _ = program_of(case, "gemm", {**given, "copies": Copies.TMA}, SM_90A)
    if mode not in scheduled.candidates["copies"]:
        pytest.skip("there are no two tiles to share one")
    stages = scheduled.candidates["stages"]
    check(emulator, case, "gemm", {**given, "stages": stages[turn % len(stages)]}, SM_90A)


@pytest.mark.parametrize(("operator", "tile"), in_turn(7, (0, 1, 3), range(len(WARPGROUP_TILES)), second=3))
def test_each_tile(emulator: Emulator, operator: int, tile: int) -> None:
    wide = replace(SQUARE, batch=4, c=128, o=256, x=(7, 6), y=(7, 6)) if WARPGROUP_TILES[tile].block_n > 64 else SQUARE
    layer = wide if operator != 1 else swapped(wide)
    case = Case(OPERATORS[operator], layer, dtype=TYPES[tile % 2])
    modes = [
        mode for mode in TMA_MODES if mode in program_of(case, "gemm", {"tile": tile}, SM_90A)[0].candidates["copies"]
    ]
    check(emulator, case, "gemm", {"tile": tile, "copies": modes[(operator + tile) % len(modes)]}, SM_90A)


@pytest.mark.parametrize(("operator", "data_format"), in_turn(2, range(len(OPERATORS)), ["NXC", "NCX"]))
def test_operators_layouts_and_split_sums(emulator: Emulator, operator: int, data_format: str) -> None:
    """What is packed is copied by TMA, too."""
    layer = replace(SQUARE, batch=7, o=64)
    case = Case(OPERATORS[operator], layer, data_format, "OIX", "f16")
    split_k = program_of(case, "gemm", {"tile": SMALL}, SM_90A)[0].candidates["split_k"]
    given = {"tile": SMALL, "copies": TMA_MODES[operator % 3 if operator % 3 < 2 else 0], "split_k": max(split_k)}
    assert max(split_k) > 1
    check(emulator, case, "gemm", given, SM_90A)


@pytest.mark.parametrize("case", covering([case for case in cases() if case.convolution.groups == 1][::3], quick=0))
def test_random_strides_pads_and_dilations(emulator: Emulator, case: Case) -> None:
    """The rules' cases with so many channels that TMA copies them."""
    many = replace(case.convolution, c=64, o=64)
    case = replace(case, convolution=many).with_dtype("bf16")
    if not takes("gemm", case, SM_90A):
        pytest.skip("no product is met")
    given = {"tile": SMALL, "copies": Copies.TMA}
    check(emulator, case, "gemm", given, SM_90A)


def test_which_targets_have_tma_and_what_it_cannot_copy() -> None:
    def modes(layer: Convolution, operator: int = 0, dtype: str = "f16", target: object = SM_90A) -> set[int]:
        scheduled, _ = program_of(Case(OPERATORS[operator], layer, dtype=dtype), "gemm", {}, target)  # type: ignore[arg-type]
        return set(scheduled.candidates.get("copies", ()))

    assert Copies.TMA in modes(SQUARE)
    for layer, shared in ((PHASES, False), (replace(PHASES, c=128), True)):  # by columns of one phase alone
        scheduled, _ = program_of(Case(OPERATORS[1], layer, dtype="f16"), "gemm", {"tile": SMALL}, SM_90A)
        assert (Copies.TMA_MULTICAST_A in scheduled.candidates["copies"]) is shared
    for refused in (
        modes(SQUARE, target=SM_90),
        modes(SQUARE, dtype="f32"),
        modes(replace(SQUARE, c=96)),  # lines of two taps
        modes(replace(SQUARE, groups=2, c=128)),
        modes(replace(SQUARE, x=(9, 300), k=(3, 131), y=(9, 172))),  # a tap that is too far away
        modes(replace(STRIDED, c=72), operator=1),  # columns of two phases
    ):
        assert refused.isdisjoint(TMA_MODES)


@pytest.mark.parametrize("operator", [0, 1])
def test_no_thread_computes_addresses_of_copies(operator: int) -> None:
    case = Case(OPERATORS[operator], replace(SQUARE, batch=7, o=64), dtype="f16")
    program = by_tma(case, tile=SMALL, copies=Copies.TMA, split_k=1)
    assert "cp.async.cg" not in program.source and "cp.async.ca" not in program.source
    source = program.source.replace("__device__ __forceinline__", "")
    consumer, producer = source[source.index("for (int step") :].split("for (int step")[1:3]
    for body, order in (
        (consumer, ("wait_phase", "multiply_shared", "commit_products", "wait_products_1", "arrive")),
        (producer, ("wait_phase", "expect", "copy_pixels")),
    ):
        places = [body.index(f"tvmconvgrad_{each}") for each in order]
        assert places == sorted(places)
    assert "__syncthreads" not in consumer
    assert "tvmconvgrad_copy" not in consumer


def test_blocks_that_share_a_tile_load_half_of_it() -> None:
    def bytes_of(mode: Copies) -> list[int]:
        case = Case(OPERATORS[0], replace(SQUARE, c=256, o=256), dtype="f16")
        program = by_tma(case, tile=WARPGROUP_TILES.index(GemmTile(128, 128, (2, 1))), copies=mode)
        (launch,) = (each for each in program.launches if each.function == "main_kernel")
        maps = [each for each in launch.arguments if isinstance(each, TensorMap)]
        counts = [program.source.count(f"(&({each}_ptr[0]))") for each in ("sum_a_map", "sum_b_map")]
        return [count * each.box[0] * each.box[1] for count, each in zip(counts, maps)]

    alone = bytes_of(Copies.TMA)
    assert bytes_of(Copies.TMA_MULTICAST_B) == [alone[0], alone[1] // 2]
    assert bytes_of(Copies.TMA_MULTICAST_A) == [alone[0] // 2, alone[1]]


def of_map(**changes: object) -> Callable[[Program], Program]:
    """A change of A's map."""

    def change(program: Program) -> Program:
        (launch, *rest) = program.launches
        place = next(i for i, each in enumerate(launch.arguments) if isinstance(each, TensorMap))
        arguments = list(launch.arguments)
        arguments[place] = replace(arguments[place], **changes)  # type: ignore[type-var]
        return replace(program, launches=(replace(launch, arguments=tuple(arguments)), *rest))

    return change


FAULTS = {
    "no wait": (changed("ended = 0; !ended;", "ended = 1; !ended;"), "elements differ|before its copies|too many"),
    "a wait for another phase": (changed('"r"(parity)', '"r"(!parity)'), "elements differ|never comes|too many"),
    "nobody leaves a stage": (changed("mbarrier.arrive.shared::cluster.b64 _, [there];", ""), "never comes"),
    "one block is told alone": (changed("there, %0, %1;", "there, %0, 0;"), "too many|never comes"),
    "less bytes than come": (changed('"r"(bytes)', '"r"(bytes / 2)'), "never comes|before its copies|elements differ"),
    "tiles for one block alone": (changed(".multicast::cluster", ""), "static assertion"),
    "blocks that are no cluster": (changed("__cluster_dims__(2, 1, 1) ", ""), "no such block|never comes"),
    "a block ends too early": (changed("  tvmconvgrad_cluster_sync();\n  __sync", "  __sync"), "has ended"),
    "barriers that nobody has made": (changed("mbarrier.init.shared::cta.b64 [%0], %1;", ""), "not been made"),
    "the tap of another axis": (changed("static_cast<short>(n4)", "static_cast<short>(n5)"), "elements differ"),
    "another box of pixels": (of_map(corners=((-1, -2), (-1, -1))), "elements differ|outside of their bounding box"),
    "other steps": (of_map(steps=(2, 1)), "elements differ"),
    "another swizzling": (of_map(line_bytes=64, box=(32, 32)), "elements differ|never comes"),
}  # fmt: skip


def test_what_has_no_fault_passes(emulator: Emulator) -> None:
    check_program(emulator, FAULT_CASE, fault_program())


FAULT_CASE = Case(OPERATORS[0], replace(SQUARE, c=128, o=64), dtype="f16")


def fault_program() -> Program:
    """Two blocks of neighbouring rows share B's tiles."""
    return by_tma(FAULT_CASE, tile=SMALL, copies=Copies.TMA_MULTICAST_B, stages=4, split_k=1, block_k=32)


@pytest.mark.parametrize("fault", every(3, list(FAULTS)))
def test_a_fault_is_seen(emulator: Emulator, fault: str) -> None:
    change, words = FAULTS[fault]
    with pytest.raises(AssertionError, match=words):
        check_program(emulator, FAULT_CASE, change(fault_program()))
