"""benchmarks/instructions.py: which lines of an assembly are an innermost loop, and how many products these have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "instructions.py"
ASSEMBLY = """
.LBB0_1:
	mov	x9, #0
.LBB0_2:
	cmp	x9, #27
	b.hi	.LBB0_3
	ldr	s4, [x1], #4
	fmla	v0.4s, v2.4s, v4.s[0]
	bfdot	v1.4s, v3.8h, v4.2h[0]
	fmla	s5, s6, v7.s[1]
.LBB0_3:
	subs	x9, x9, #1
	b.ne	.LBB0_2
	fmla	v8.4s, v9.4s, v10.4s
	cbnz	x2, .LBB0_1
.LBB0_4:
	b	.LBB0_5
	.p2align	4
.LBB0_5:
	add	x3, x3, #1
	tbnz	w4, #0, .LBB0_5
	ret
"""


def test_innermost_loops_and_their_products() -> None:
    spec = importlib.util.spec_from_file_location("instructions", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    first, second = script.innermost_loops(ASSEMBLY)
    assert [line.split()[0] for line in first] == ["cmp", "b.hi", "ldr", "fmla", "bfdot", "fmla", "subs", "b.ne"]
    assert [line.split()[0] for line in second] == ["add", "tbnz"]
    assert (script.products(first), script.products(second)) == (4 + 8, 0)
