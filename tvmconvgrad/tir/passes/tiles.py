"""A pass for AMX: a block of bf16 sums stays in tile registers, of up to 16 rows of 16 f32 each.

    for m, n: acc[m, n] = 0                                    tilezero, for each tile of the block
    for m, n, k, i: acc[m, n] += a[m, k, i] * b[k, n, i]  ->   tileloadd of a's and b's tiles; tdpbf16ps for each pair
    for m, n: block[m, n] = acc[m, n]                          tilestored, for each tile

`a` and `b` are bf16 dot-product pairs (i is 0 or 1), up to 16 of them for each step. A schedule annotates each of these
loops over m by `TILES`, with the rows of a tile. No other loop of a block is left between them: m and n have one loop
each, which this pass divides into tiles. `acc` itself is never in memory.

The instructions name tile registers by numbers. So they are called through functions in LLVM IR, one for each number,
and LLVM assigns no tile register itself. A thread tells its CPU the tiles' shapes when it begins a work item, and
releases them at its end, so that the system has no tiles to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import DataType, tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.sym import Analyzer

from tvmconvgrad.tir.annotations import TILES
from tvmconvgrad.tir.passes.buffers import with_arrays_in_lines
from tvmconvgrad.tir.passes.statements import index, with_functions, without_binds
from tvmconvgrad.tir.rewriting import nodes, replaced, rewritten, with_body

COLUMNS = 16
"""The f32 in a row of a tile register: 64 bytes."""

REGISTERS = 8
"""The number of tile registers."""

STORE_TILES = "store_tiles"
"""The name of the function that stores a block's sums."""

INTRINSICS = "llvm.x86."
"""How the names of the instructions' functions begin. A test puts functions in C in their place."""

_RELEASE = """
declare void @{x86}tilerelease()
define i32 @release_tiles() {{
  call void @{x86}tilerelease()
  ret i32 0
}}
"""
_CONFIGURE = """
@tile_shapes = internal constant [64 x i8] [{shapes}], align 64
declare void @{x86}ldtilecfg(ptr)
define i32 @configure_tiles() {{
  call void @{x86}ldtilecfg(ptr @tile_shapes)
  ret i32 0
}}
"""
_ZERO = """
declare void @{x86}tilezero(i8)
define i32 @zero_tiles() {{
{calls}
  ret i32 0
}}
"""
_MULTIPLY = """
declare void @{x86}tileloadd64(i8, ptr, i64)
declare void @{x86}tdpbf16ps(i8, i8, i8)
define i32 @multiply_tiles({parameters}, i64 %stride_a, i64 %stride_b) {{
{calls}
  ret i32 0
}}
"""
_STORE = """
declare void @{x86}tilestored64(i8, ptr, i64)
define i32 @store_tiles({parameters}, i64 %stride) {{
{calls}
  ret i32 0
}}
"""


@dataclass(frozen=True)
class TileBlock:
    """A block of `m` x `n` tiles of sums, each of so many `rows`; a step adds `pairs` pairs of products."""

    rows: int
    m: int
    n: int
    pairs: int

    @property
    def fits(self) -> bool:
        """Whether there are tile registers for the sums, for all tiles of `a`, and for one of `b`."""
        return self.m * self.n + self.m < REGISTERS

    def functions(self) -> list[str]:
        """The functions in LLVM IR that the statements call."""
        sums = range(self.m * self.n)
        zeros = [f"  call void @{INTRINSICS}tilezero(i8 {number})" for number in sums]
        stores = [f"  call void @{INTRINSICS}tilestored64(i8 {number}, ptr %c{number}, i64 %stride)" for number in sums]
        operands = [f"ptr %{name}{number}" for name, count in (("a", self.m), ("b", self.n)) for number in range(count)]
        stored = ", ".join(f"ptr %c{number}" for number in sums)
        return [
            _CONFIGURE.format(shapes=self._shapes(), x86=INTRINSICS),
            _ZERO.format(calls="\n".join(zeros), x86=INTRINSICS),
            _MULTIPLY.format(parameters=", ".join(operands), calls="\n".join(self._products()), x86=INTRINSICS),
            _STORE.format(parameters=stored, calls="\n".join(stores), x86=INTRINSICS),
            _RELEASE.format(x86=INTRINSICS),
        ]

    def _b(self, number: int) -> int:
        """The register of a tile of `b`: those that are left take turns."""
        first = self.m * self.n + self.m
        return first + number % (REGISTERS - first)

    def _products(self) -> list[str]:
        first_a = self.m * self.n
        calls = []
        for n in range(self.n):
            calls.append(f"tileloadd64(i8 {self._b(n)}, ptr %b{n}, i64 %stride_b)")
            for m in range(self.m):
                if n == 0:
                    calls.append(f"tileloadd64(i8 {first_a + m}, ptr %a{m}, i64 %stride_a)")
                calls.append(f"tdpbf16ps(i8 {m * self.n + n}, i8 {first_a + m}, i8 {self._b(n)})")
        return [f"  call void @{INTRINSICS}{call}" for call in calls]

    def _shapes(self) -> str:
        """What LDTILECFG reads: palette 1, the bytes of each register's rows from byte 16 on, and their number from
        byte 48 on."""
        text = bytearray(64)
        text[0] = 1
        for number in range(REGISTERS):
            is_sum, is_a = number < self.m * self.n, number < self.m * self.n + self.m
            text[16 + 2 * number] = 4 * self.pairs if is_a and not is_sum else 4 * COLUMNS
            text[48 + number] = self.rows if is_a else self.pairs
        return ", ".join(f"i8 {value}" for value in text)


def with_tiles(module: IRModule) -> IRModule:
    """`module` with tile registers in the annotated loops. RuntimeError for loops that are no such block."""
    marked = [mark for mark in nodes(module, tirx.AttrStmt) if mark.attr_key == TILES]
    if not marked:
        return module
    nests = [_Nest(mark) for mark in marked]
    blocks = {nest.block for nest in nests if nest.multiplies}
    if len(blocks) != 1:
        raise RuntimeError(f"a program has blocks of tiles of several shapes: {blocks}")
    if sum(nest.multiplies for nest in nests) != sum(not nest.loads for nest in nests):
        raise RuntimeError("tile registers are accumulated before they are zeroed")
    (block,) = blocks

    def statement(mark: tirx.AttrStmt) -> tirx.Stmt:
        return _Nest(mark).instructions(block) if mark.attr_key == TILES else mark

    parallel = [loop.body for loop in nodes(module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
    alone = sum(map(_tiles, parallel)) < len(marked)  # a single work item has no loop

    def work_items(loop: tirx.For) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.PARALLEL or not _tiles(loop.body):
            return loop
        configured = with_body(loop, _configured(loop.body))
        return tirx.SeqStmt([configured, _call("configure_tiles")]) if alone else configured

    stored = [nest.store.buffer for nest in nests if nest.loads and not nest.multiplies]
    module = rewritten(module, (tirx.For, work_items))
    if alone:
        module = rewritten(module, (tirx.PrimFunc, lambda program: program.with_body(_configured(program.body))))
    module = with_arrays_in_lines(rewritten(module, (tirx.AttrStmt, statement)), stored)
    return with_functions(module, block.functions())


def _tiles(statement: tirx.Stmt) -> int:
    """The number of annotated loops in a statement."""
    return sum(mark.attr_key == TILES for mark in nodes(statement, tirx.AttrStmt))


def _configured(body: tirx.Stmt) -> tirx.Stmt:
    """A statement that begins by configuring the tile registers, and ends by releasing them."""
    return tirx.SeqStmt([_call("configure_tiles"), body, _call("release_tiles")])


class _Nest:
    """An annotated nest: loops over m and n, and over k and i where products are added up; and the store within."""

    def __init__(self, mark: tirx.AttrStmt) -> None:
        self.rows = int(mark.value)
        self.loops: list[tirx.For] = []
        statement = without_binds(mark.body)
        while isinstance(statement, tirx.For):
            self.loops.append(statement)
            statement = without_binds(statement.body)
        self.store = statement
        loads = nodes(statement.value, TensorLoad)
        self.loads = [load for load in loads if not load.source.same_as(statement.buffer)]

    @property
    def multiplies(self) -> bool:
        """Whether the nest adds up products."""
        return len(self.loads) == 2

    @property
    def block(self) -> TileBlock:
        """The shape of the block, of a nest that adds up products."""
        m, n, k, _ = (int(loop.extent) for loop in self.loops)
        return TileBlock(self.rows, m // self.rows, n // COLUMNS, k)

    def instructions(self, block: TileBlock) -> tirx.Stmt:
        """What takes the nest's place."""
        m, n, *_ = self.loops
        if not self.loads:
            return _call("zero_tiles")
        if not self.multiplies:
            result = _Access(self.store.buffer, self.store.indices[0], self.loops)
            result.expect_step(n, 1)
            places = [place for row in range(block.m) for place in result.tiles(n, block.n, m, row * self.rows)]
            return _call(STORE_TILES, *places, result.row_stride_bytes(m, self.rows))
        first, second = (_Access(load.source, load.indices[0], self.loops) for load in self.loads)
        a, b = (first, second) if second.step(n) == 2 else (second, first)
        _, _, k, _ = self.loops
        a.expect_step(k, 2)
        b.expect_step(n, 2)
        a.expect_fixed(n)
        b.expect_fixed(m)
        strides = a.row_stride_bytes(m, self.rows), b.row_stride_bytes(k, block.pairs)
        return _call("multiply_tiles", *a.tiles(m, block.m), *b.tiles(n, block.n), *strides)


class _Access:
    """What a nest of `loops` reads, or writes, of a buffer."""

    def __init__(self, buffer: tirx.Buffer, place: Expr, loops: Sequence[tirx.For]) -> None:
        self.buffer, self.place, self.loops = buffer, place, loops

    def tiles(self, along: tirx.For, count: int, other: tirx.For | None = None, at: int = 0) -> list[Expr]:
        """The addresses of `count` tiles along a loop, at the step `at` of an`other`."""
        size = int(along.extent) // count
        places = [{along: size * number} | ({other: at} if other else {}) for number in range(count)]
        return [tirx.address_of(tirx.BufferLoad(self.buffer, [self._at(place)])) for place in places]

    def step(self, loop: tirx.For, count: int = 1) -> int | None:
        """By how many elements the place moves in `count` steps of a loop; None if that varies."""
        moved = Analyzer().simplify(self._at({loop: count}) - self._at({}))
        return int(moved) if isinstance(moved, tirx.IntImm) else None

    def row_stride_bytes(self, loop: tirx.For, rows: int) -> Expr:
        """The bytes from one row of a tile to the next, where the rows are `rows` steps of a loop."""
        step = self.step(loop) if rows > 1 else 0
        if step is None or self.step(loop, rows - 1) != step * (rows - 1):
            raise RuntimeError(f"rows of a tile have no constant stride: {self.buffer.name}[{self.place}]")
        return index(step * int(DataType(str(self.buffer.dtype)).bits) // 8)

    def expect_step(self, loop: tirx.For, step: int) -> None:
        """RuntimeError unless a loop's steps are so many elements apart."""
        if self.step(loop) != step:
            raise RuntimeError(f"the rows of a tile are not contiguous: {self.buffer.name}[{self.place}]")

    def expect_fixed(self, loop: tirx.For) -> None:
        """RuntimeError if the place depends on a loop: a tile serves all of its steps."""
        if any(self.step(loop, count) != 0 for count in range(1, int(loop.extent))):
            raise RuntimeError(f"operand {self.buffer.name} varies along the other operand's loop: [{self.place}]")

    def _at(self, steps: Mapping[tirx.For, int]) -> Expr:
        """The place at these steps, and at the first step of all other loops."""
        return replaced(self.place, {loop.loop_var: index(steps.get(loop, 0)) for loop in self.loops})


def _call(name: str, *arguments: Expr) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))
