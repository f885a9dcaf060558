"""Every operator, type, layout and rank as machine code for GPUs: python -m tests.cuda_all [ARCHITECTURE...]

By default sm_80, sm_90 and sm_90a. It prints what spills registers, waits for each product of `wgmma`, or is not built,
and ends with 1 if anything is not.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.cases.case import DTYPES, OPERATORS, Case
from tests.support.cases.convolution import Convolution
from tests.support.cases.layouts import DATA_FORMATS, filter_formats
from tvmconvgrad.spec import Problem

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a")
# dense with channels for whole tiles, and grouped with a stride, a dilation and tails, of 1 to 3 axes
DENSE = [
    Convolution(4, 1, 64, 96, (n,) * rank, (n,) * rank, *((each,) * rank for each in (3, 1, 1, 1, 1)))
    for rank, n in ((1, 100), (2, 14), (3, 7))
]
GROUPED = [
    Convolution(2, 3, 15, 21, (12,) * rank, (5,) * rank, *((each,) * rank for each in (3, 2, 2, 0, 1)))
    for rank in (1, 2, 3)
]


def cases() -> Iterator[Case]:
    """All of them."""
    for conv in (*DENSE, *GROUPED):
        for operator, data_format, dtype in itertools.product(OPERATORS, DATA_FORMATS, DTYPES):
            for filter_format in filter_formats(operator):
                yield Case(operator, conv, data_format, filter_format, dtype)


def problem_of(case: Case) -> Problem:
    """As a kernel is built from it."""
    import tvmconvgrad
    from tvmconvgrad.spec.reducing.merging import merged

    call = case.call
    operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
    return merged(operator.problem(*call.shapes, call.shape_input, call.dtype))


def compiled(case: Case, arch: str, pool: ThreadPoolExecutor) -> Any:
    """The facts of a kernel, as a future; its program is made now."""
    from tvmconvgrad.compiler.cuda import compiler
    from tvmconvgrad.machines.targets import parse_target

    target = parse_target(f"cuda -arch={arch}")
    built = compiler.build(problem_of(case), target)
    return built.scheduled, pool.submit(compiler.compile_program, built.program, target)


def main(architectures: list[str]) -> int:
    """Build all, some at the same time."""
    begin, failed, count, spilled, rules = time.monotonic(), 0, 0, 0, dict[str, int]()
    with ThreadPoolExecutor() as pool:
        for arch, case in itertools.product(architectures, cases()):
            count += 1
            try:
                scheduled, future = compiled(case, arch, pool)
                _, facts = future.result()
            except Exception as error:
                failed += 1
                print(f"FAILED {arch} {case}: {type(error).__name__}: {str(error).strip()[-300:]}", flush=True)
                continue
            rules[scheduled.rule] = rules.get(scheduled.rule, 0) + 1
            spills = {name: usage["spilled_bytes"] for name, usage in facts["usage"].items() if usage["spilled_bytes"]}
            if spills:
                spilled += 1
                print(f"spills {arch} {case} {scheduled}: {spills}", flush=True)
            if any(usage["serialized"] for usage in facts["usage"].values()):
                print(f"serialized {arch} {case} {scheduled}", flush=True)
    seconds = time.monotonic() - begin
    print(f"{count} kernels in {seconds:.0f} s: {failed} not built, {spilled} that spill; by rule {rules}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(ARCHITECTURES)))
