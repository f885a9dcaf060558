"""Copies against the memory's order, by blocks that are transposed in registers: as NumPy transposes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from tvmconvgrad.compiler import pipeline
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.tir.annotations import TRANSPOSE
from tvmconvgrad.tir.passes.limits import LEAST_SIDE, MAX_STRIDE

SIZES = [(16, 16), (48, 32), (20, 37), (5, 64), (64, 5), (7, 9), (3, 50), (33, 4)]
NUMPY: dict[str, Any] = {"float32": np.float32, "float16": np.float16}


def copied(
    source: Any, dtype: str, pad: int = 0, stride: int = 1, marked: bool = True, result: str = "float32"
) -> tuple[Any, str]:
    """Every so-many-th column of `source` transposed, with a border of zeros along its rows, in the type `result`, by
    the compiler; and LLVM's program."""
    rows, width = source.shape
    a = te.placeholder((rows, width), dtype, "a")
    columns = -(-width // stride)

    def element(j: Any, i: Any) -> Any:
        inside = tirx.all(j >= pad, j < columns + pad)
        value = a(i, (j - pad) * stride).astype(result)
        return tirx.if_then_else(inside, value, tirx.const(0, result)) if pad else value

    out = te.compute((columns + 2 * pad, rows), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    if marked:
        sch.annotate(sch.get_loops(sch.get_sblock("out"))[0], TRANSPOSE, 1)
    return built(sch, source, (columns + 2 * pad, rows), result)


def built(sch: Schedule, source: Any, shape: tuple[int, ...], dtype: str = "float32") -> tuple[Any, str]:
    """What the compiler's program makes of `source`, and LLVM's program."""
    target = tvm.target.Target(parse_target(None).to_dict())
    module = tvm.compile(sch.mod, target=target, tir_pipeline=pipeline.NAME)
    result = tvm.runtime.empty(shape, dtype)
    module.jit()["main"](source, result)
    return result.numpy(), module.mod.inspect_source("ll")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tile", [(16, 16), (32, 14), (8, 30), (16, 7)], ids=str)
@pytest.mark.parametrize("size", [(149, 40), (29, 8), (31, 33), (5, 16), (64, 64), (33, 1)], ids=str)
def test_tiles_whose_surplus_is_not_stored(size: tuple[int, int], tile: tuple[int, int], dtype: str) -> None:
    """What a tile writes beyond the end of a row would overwrite the begin of the next one."""
    source = np.arange(size[0] * size[1], dtype=np.float32).reshape(size).astype(NUMPY[dtype])
    a = te.placeholder(size, dtype, "a")
    rounded = [-(-extent // part) * part for extent, part in zip(size, tile[::-1])]
    inside = tuple(extent - 1 for extent in size)
    sums = te.compute(rounded, lambda i, j: a(tirx.min(i, inside[0]), tirx.min(j, inside[1])), name="sums")
    out = te.compute(size[::-1], lambda j, i: sums(i, j).astype("float32"), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    (j0, j1), (i0, i1) = (
        sch.split(loop, [None, part]) for loop, part in zip(sch.get_loops(sch.get_sblock("out")), tile)
    )
    sch.reorder(i0, j0, j1, i1)
    sch.annotate(j1, TRANSPOSE, 1)
    sch.set_scope(sch.get_sblock("sums"), 0, "local")
    sch.compute_at(sch.get_sblock("sums"), j0)
    got, program = built(sch, source, size[::-1])
    assert np.array_equal(got, source.T)
    has_whole_tiles = tile[0] <= size[1] and tile[1] <= size[0]
    assert not has_whole_tiles or "shufflevector" in program


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_transposed_copy(size: tuple[int, int], dtype: str, pad: int) -> None:
    source = np.arange(size[0] * size[1], dtype=np.float32).reshape(size) % 999
    got, _ = copied(source.astype(NUMPY[dtype]), dtype, pad)
    assert np.array_equal(got, np.pad(source.T, ((pad, pad), (0, 0))))


@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_of_strided_columns(size: tuple[int, int], dtype: str, stride: int) -> None:
    source = np.arange(size[0] * size[1], dtype=np.float32).reshape(size) % 999
    got, _ = copied(source.astype(NUMPY[dtype]), dtype, stride=stride)
    assert np.array_equal(got, source[:, ::stride].T)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("pad", [1, 5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("width", [16, 50, 97])
def test_of_strided_columns_of_two_rows_with_a_border(width: int, dtype: str, pad: int, stride: int) -> None:
    source = np.arange(1, 2 * width + 1, dtype=np.float32).reshape(2, width)
    got, _ = copied(source.astype(NUMPY[dtype]), dtype, pad, stride)
    assert np.array_equal(got, np.pad(source[:, ::stride].T, ((pad, pad), (0, 0))))


@pytest.mark.parametrize("result", ["float16", "bfloat16"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_copy_that_is_rounded(size: tuple[int, int], result: str) -> None:
    source = np.arange(size[0] * size[1], dtype=np.float32).reshape(size) / 3
    got, _ = copied(source, "float32", result=result)
    assert np.array_equal(got, source.T.astype(got.dtype))


@pytest.mark.parametrize("given", [{}, {"pad": 2}, {"stride": 2}, {"result": "bfloat16"}], ids=str)
def test_the_marked_copy_goes_by_shuffles(given: dict[str, Any]) -> None:
    source = np.zeros((32, 64), np.float32)
    marked, plain = (copied(source, "float32", **given, marked=how)[1] for how in (True, False))
    assert marked.count("shufflevector") >= 4 * 16 > plain.count("shufflevector")


@pytest.mark.parametrize("size", [(16, 16), (8, 24), (3, 20)], ids=str)
def test_whole_blocks_of_pads(size: tuple[int, int]) -> None:
    """Images between two that are all pads: of a block everything is copied, or nothing."""
    images = np.arange(2 * size[0] * size[1], dtype=np.float32).reshape(2, *size)
    a = te.placeholder(images.shape, "float32", "a")

    def element(n: Any, j: Any, i: Any) -> Any:
        return tirx.if_then_else(tirx.all(n >= 1, n < 3), a(n - 1, i, j), tirx.const(0, "float32"))

    out = te.compute((4, size[1], size[0]), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[1], TRANSPOSE, 1)
    got, _ = built(sch, images, (4, size[1], size[0]))
    assert np.array_equal(got, np.pad(images.transpose(0, 2, 1), ((1, 1), (0, 0), (0, 0))))


def interleaved(source: Any, along: bool) -> tuple[Any, str]:
    """Two arrays of bits, or what is one after the other in one, in pairs by columns: (.., column, 2); and LLVM's
    program. With `along` the columns are neighbours in memory, else the two of a pair."""
    a = te.placeholder(source.shape, "uint16", "a")
    rows, columns = source.shape
    if along:
        out = te.compute((rows // 2, columns, 2), lambda r, c, p: a(r * 2 + p, c), name="out")
    else:
        out = te.compute((columns // 2, rows, 2), lambda r, c, p: a(c, r * 2 + p), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    outer, column, _ = sch.get_loops(sch.get_sblock("out"))
    sch.annotate(column if along else outer, TRANSPOSE, 1)
    return built(sch, source, tuple(int(extent) for extent in out.shape), "uint16")


@pytest.mark.parametrize("size", [(32, 48), (16, 20), (6, 6), (2, 64), (4, 4), (64, 2)], ids=str)
def test_pairs_of_rows_and_rows_of_pairs(size: tuple[int, int]) -> None:
    source = np.random.default_rng(3).integers(0, 1 << 16, size).astype(np.uint16)
    rows, columns = size
    along, _ = interleaved(source, along=True)
    assert np.array_equal(along, source.reshape(rows // 2, 2, columns).transpose(0, 2, 1))
    across, _ = interleaved(source, along=False)
    assert np.array_equal(across, source.reshape(rows, columns // 2, 2).transpose(1, 0, 2))


@pytest.mark.parametrize("along", [True, False])
def test_pairs_go_by_shuffles(along: bool) -> None:
    _, program = interleaved(np.zeros((32, 64), np.uint16), along)
    assert program.count("shufflevector") >= 2


@pytest.mark.parametrize("first", [True, False], ids=["pairs of rows", "rows of pairs"])
@pytest.mark.parametrize("size", [(9, 16), (9, 12), (27, 32), (4, 5), (16, 4), (3, 3)], ids=str)
def test_pairs_whose_elements_lie_apart(size: tuple[int, int], first: bool) -> None:
    """As a filter with taps innermost has them: (2, channels, taps) or (channels, 2, taps)."""
    taps, channels = size
    shape = (2, channels, taps) if first else (channels, 2, taps)
    source = np.random.default_rng(3).integers(0, 1 << 16, shape).astype(np.uint16)
    a = te.placeholder(shape, "uint16", "a")
    out = te.compute((taps, channels, 2), lambda k, c, p: a(p, c, k) if first else a(c, p, k), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[0], TRANSPOSE, 1)
    got, program = built(sch, source, (taps, channels, 2), "uint16")
    assert np.array_equal(got, source.transpose(2, 1, 0) if first else source.transpose(2, 0, 1))
    assert program.count("shufflevector") >= 2 * min(size) or min(size) < LEAST_SIDE


def row_phase(source: Any, stride: int, begin: int, width: int) -> tuple[Any, str]:
    """Every so-many-th element of each row in f32, from the element `begin` on, which may be outside of the row, with
    zeros in place of what is; and LLVM's program."""
    rows, size = source.shape
    a = te.placeholder(source.shape, source.dtype.name, "a")

    def element(i: Any, j: Any) -> Any:
        place = j * stride + begin
        inside = [place >= 0] * (begin < 0) + [place < size] * ((width - 1) * stride + begin >= size)
        value = a(i, place).astype("float32")
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, "float32")) if inside else value

    out = te.compute((rows, width), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[1], TRANSPOSE, 1)
    return built(sch, source, (rows, width))


@pytest.mark.parametrize(("stride", "begin", "width"), [(2, 0, 20), (2, -3, 23), (3, 1, 13), (4, -1, 300), (5, 0, 8)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_phase_of_rows(dtype: str, stride: int, begin: int, width: int) -> None:
    """The last vector of the last row would reach beyond the tensor."""
    size = (width - 1) * stride + begin + 1 if begin >= 0 else (width - 3) * stride
    source = (np.arange(3 * size).reshape(3, size) % 999 + 1).astype(dtype)
    got, program = row_phase(source, stride, begin, width)
    places = np.arange(width) * stride + begin
    inside = (places >= 0) & (places < size)
    assert np.array_equal(got, np.where(inside, source[:, np.clip(places, 0, size - 1)], 0))
    assert stride > MAX_STRIDE or "shufflevector" in program


def test_strided_columns_of_pairs_of_images() -> None:
    """As bf16 dot products of a strided weights gradient read them: no step leads from one image to the next."""
    source = np.random.default_rng(3).integers(0, 1 << 16, (2, 16, 63)).astype(np.uint16)
    a = te.placeholder(source.shape, "uint16", "a")
    out = te.compute((32, 16, 2), lambda j, c, n: a(n, c, 2 * j), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    column, *pairs = sch.get_loops(sch.get_sblock("out"))
    sch.fuse(*pairs)
    sch.annotate(column, TRANSPOSE, 1)
    got, program = built(sch, source, (32, 16, 2), "uint16")
    assert np.array_equal(got, source[:, :, ::2].transpose(2, 1, 0))
    assert program.count("shufflevector") >= 4 * 16


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("columns", [4, 14, 28, 33])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5])
def test_strided_columns_of_two_rows(stride: int, columns: int, pad: int) -> None:
    """As a strided weights gradient in NCX interleaves two images."""
    source = np.random.default_rng(3).integers(0, 1 << 16, (2, (columns - 1) * stride + 1)).astype(np.uint16)
    got, _ = copied(source, "uint16", pad, stride=stride, result="uint16")
    assert np.array_equal(got, np.pad(source[:, ::stride].T, ((pad, pad), (0, 0))))


@pytest.mark.parametrize("images", [1, 2], ids=["rows", "pairs of rows"])
@pytest.mark.parametrize(("channels", "pieces", "pad"), [(3, 1, 2), (3, 4, 3), (5, 3, 0), (2, 5, 9), (7, 2, 1)])
def test_pieces_of_rows_of_few_channels(channels: int, pieces: int, pad: int, images: int) -> None:
    """Positions and channels are one loop. Which of its steps are pads depends on the piece, and on a quotient."""
    width, step = 10 * pieces, 10
    length = step + 2 * pad
    source = np.random.default_rng(3).integers(1, 1 << 16, (images, width, channels)).astype(np.uint16)
    a = te.placeholder(source.shape, "uint16", "a")

    def element(p: Any, j: Any, c: Any, n: Any) -> Any:
        place = p * step + j - pad
        inside = tirx.all(place >= 0, place < width)
        return tirx.if_then_else(inside, a(n, place, c), tirx.const(0, "uint16")) if pad else a(n, place, c)

    out = te.compute((pieces, length, channels, images), element, name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    _, place, channel, _ = sch.get_loops(sch.get_sblock("out"))
    sch.annotate(sch.fuse(place, channel), TRANSPOSE, 1)
    got, program = built(sch, source, (pieces, length, channels, images), "uint16")
    padded = np.pad(source, ((0, 0), (pad, pad), (0, 0)))
    expected = np.stack([padded[:, p * step : p * step + length] for p in range(pieces)])
    assert np.array_equal(got, expected.transpose(0, 2, 3, 1))
    assert " x i16>" in program


@pytest.mark.parametrize("images", [1, 2], ids=["rows", "pairs of rows"])
def test_a_condition_that_holds_at_both_ends_only(images: int) -> None:
    """Every fifth column is zero, neither the first nor the last one of a vector."""
    source = np.random.default_rng(3).integers(1, 1 << 16, (images, 64)).astype(np.uint16)
    a = te.placeholder(source.shape, "uint16", "a")
    zero = tirx.const(0, "uint16")
    out = te.compute((64, images), lambda j, n: tirx.if_then_else((j + 3) % 5 < 4, a(n, j), zero), name="out")
    sch = Schedule(te.create_prim_func([a, out], index_dtype_override="int64"))
    sch.annotate(sch.get_loops(sch.get_sblock("out"))[0], TRANSPOSE, 1)
    got, _ = built(sch, source, (64, images), "uint16")
    assert np.array_equal(got, np.where((np.arange(64) + 3) % 5 < 4, source, 0).T)
