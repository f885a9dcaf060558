"""How long the kernels of the suites take to compile: in one process after its imports, each for the first time.

    python benchmarks/compile_time.py [SUITE...] [--dtype f32] [--data-format NXC]

A line for each kernel, in seconds, with nothing from the cache; then the median and the worst with its layer.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import perf_counter

from tvmconvgrad.compiling.compiler import compile_problem
from tvmconvgrad.layers import SUITES, Layer, select_gradients
from tvmconvgrad.spec.merging import merged
from tvmconvgrad.targets import parse_target

TINY = Layer(name="tiny", batch=1, channels=2, filters=2, input_size=(4,), kernel=(1,))


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"all of {', '.join(SUITES)}, or some")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--data-format", default="NXC")
    options = parser.parse_args()
    target = parse_target()
    begin = perf_counter()
    compile_problem(TINY.gradients()[0].problem, target)
    print(f"{perf_counter() - begin:7.3f} s  a process's first kernel, of two channels")
    times: list[tuple[float, str]] = []
    for suite, gradient in select_gradients(
        options.suites or ["all"], dtypes=[options.dtype], data_format=options.data_format
    ):
        problem = merged(gradient.problem)
        begin = perf_counter()
        compile_problem(problem, target)
        times.append((perf_counter() - begin, f"{suite}/{gradient.layer.name} {gradient.kind}"))
        print(f"{times[-1][0]:7.3f} s  {times[-1][1]}", flush=True)
    worst, where = max(times)
    print(f"median {median(seconds for seconds, _ in times):.3f} s, worst {worst:.3f} s ({where}), of {len(times)}")


if __name__ == "__main__":
    main()
