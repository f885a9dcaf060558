"""How long kernels take to compile, and what that costs the program that asks for them.

    python benchmarks/compile_time.py [MEASURE...] [--beside CHECKOUT] [--rounds 1] [--every 1] [--dtype f32]

Each measure is taken in a fresh process with an empty cache; with `--beside` also in another checkout of this project,
in turn, so that a machine that others use slows both. Printed are medians of the rounds, and the ratio.

    resnet_50    seconds from the import until all gradients of ResNet-50's layers can be called
    all          the same of all suites
    one          seconds that a program waits for one kernel while the compiler is warm: median and worst of all suites,
                 or of every so-many-th of their gradients
    background   by how much a program's own calls, on one thread, slow down while 100 kernels are built meanwhile,
                 beside times in between when the compiler is stopped; of this checkout alone
    memory       by how much the program has grown after 100 kernels
    call         seconds that a call of a small kernel takes
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
MEASURES = ("resnet_50", "all", "one", "background", "memory", "call")
UNITS = {"background": ("%", 100.0), "memory": ("MiB", 2.0**-20), "call": ("us", 1e6)}
CHILD = """
import json, os, signal, sys, time
from contextlib import suppress
begin = time.perf_counter()
import tvmconvgrad as cg
from tvmconvgrad import kernels
from tvmconvgrad.layers import select_gradients
measure, dtype, data_format, every = sys.argv[1:]

def problems(suite):
    found = {}
    for name, gradient in select_gradients([suite], dtypes=[dtype], data_format=data_format):
        found.setdefault(gradient.problem, f"{name}/{gradient.layer.name} {gradient.kind}")
    return found

def first():  # the compiler starts
    ones = dict.fromkeys(("strides", "dilations", "pads_begin", "pads_end"), (1,))
    op = cg.ConvolutionBackpropFilters(**ones, filter_shape=(3, 16, 16))
    return op, ((4, 64, 16), (4, 64, 16))

def prepare(wanted):
    if hasattr(cg, "prepare"):
        cg.prepare(list(wanted))
    return [kernels.get_kernel(problem) for problem in wanted]

def hundred():
    return list(problems("all"))[:200:2]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def calls(kernel, tensors, until):
    count, begin = 0, time.perf_counter()
    while not until():
        kernel(*tensors)
        count += 1
    return (time.perf_counter() - begin) / count

def stop_workers(how):
    for pool in service._pools.values():
        for worker in list(pool._workers):
            if worker.pid:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, how)

def a_kernel():
    import numpy as np
    op, shapes = first()
    kernel = op.compile(*shapes)
    inputs = [np.ones(shape, np.float32) for shape in shapes]
    return lambda *tensors: kernel(*tensors[:2], out=tensors[2]), (*inputs, kernel(*inputs))

def seconds(count):
    end = time.perf_counter() + count
    return lambda: time.perf_counter() > end

answer = {}
cg.set_num_threads(1)
if measure in ("resnet_50", "all"):
    wanted = problems(measure)
    prepare(wanted)
    answer = {measure: time.perf_counter() - begin}
elif measure == "one":
    op, shapes = first()
    op.compile(*shapes)
    wanted = list(problems("all").items())[::int(every)]
    print(len(wanted), flush=True)
    for (problem, name), _ in zip(wanted, sys.stdin):
        begin = time.perf_counter()
        kernels.get_kernel(problem)
        print(json.dumps([time.perf_counter() - begin, name]), flush=True)
elif measure == "background":
    from tvmconvgrad.compiler import service
    from tvmconvgrad.futures import in_background
    kernel, tensors = a_kernel()
    jobs = [in_background(problem, None, None, True) for problem in hundred()]
    alone, meanwhile = [], []
    while not all(job.done() for job in jobs):
        stop_workers(signal.SIGSTOP)
        alone.append(calls(kernel, tensors, seconds(0.2)))
        stop_workers(signal.SIGCONT)
        meanwhile.append(calls(kernel, tensors, seconds(0.2)))
    answer = {measure: sum(meanwhile) / sum(alone) - 1}
elif measure == "memory":
    wanted = hundred()
    before = resident()
    held = prepare(wanted)
    answer = {measure: resident() - before}
elif measure == "call":
    kernel, tensors = a_kernel()
    answer = {measure: min(calls(kernel, tensors, seconds(0.2)) for _ in range(10))}
if answer:
    print(json.dumps(answer))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}; by default all")
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="a folder with another state of this project")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="of `one`: every so-many-th gradient")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--data-format", default="NXC")
    parser.add_argument(
        "--each", action="store_true", help="print the seconds of each kernel of `one`, here and beside"
    )
    options = parser.parse_args()
    checkouts = [HERE, *([options.beside.resolve()] if options.beside else [])]
    for measure in options.measures or MEASURES:
        if measure == "one":
            one_by_one(checkouts, options)
            continue
        found: list[dict[str, list[float]]] = [{} for _ in checkouts]
        for _ in range(options.rounds):
            for checkout, values in zip(checkouts[:1] if measure == "background" else checkouts, found):
                for name, value in take(checkout, measure, options).items():
                    values.setdefault(name, []).append(value)
        for name in found[0]:
            print(line(name, [median(values[name]) for values in found if name in values]), flush=True)


def one_by_one(checkouts: list[Path], options: argparse.Namespace) -> None:
    """Each kernel by a process of each checkout, in turn: whatever else the machine does meets both."""
    with ExitStack() as stack:
        children = [stack.enter_context(start(checkout, "one", options)) for checkout in checkouts]
        counts = [int(said(child)) for child in children]
        times: list[list[float]] = [[] for _ in children]
        for _ in range(counts[0]):
            for child, values in zip(children, times):
                assert child.stdin is not None
                print(file=child.stdin, flush=True)
                seconds, name = json.loads(said(child))
                values.append(seconds)
            if options.each:
                print(*(f"{values[-1]:7.3f} s" for values in times), name, flush=True)
    print(line("median of one", list(map(median, times))))
    print(line("worst of one", list(map(max, times))))
    if len(times) > 1:
        print(f"median ratio    {median(one / other for one, other in zip(*times)):9.2f}")


def said(child: subprocess.Popen[str]) -> str:
    """A process' next line."""
    assert child.stdout is not None
    return child.stdout.readline()


@contextmanager
def start(checkout: Path, measure: str, options: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A fresh process of a checkout, with nothing in the cache."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-benchmark-") as folder:
        own = {"PYTHONPATH": str(checkout), "TVMCONVGRAD_CACHE_DIR": folder, "TVMCONVGRAD_TUNING_DIR": folder}
        told = [measure, options.dtype, options.data_format, str(options.every)]
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", CHILD, *told]
        with subprocess.Popen(
            command, env={**os.environ, **own}, cwd=folder, stdin=pipe, stdout=pipe, text=True
        ) as child:
            yield child
            child.communicate()


def take(checkout: Path, measure: str, options: argparse.Namespace) -> dict[str, float]:
    """What a fresh process measured, in SI's units."""
    with start(checkout, measure, options) as child:
        assert child.stdout is not None
        answer: dict[str, float] = json.loads(child.stdout.read().splitlines()[-1])
    return answer


def line(name: str, values: list[float]) -> str:
    """A measure, here and in the other checkout, and the ratio."""
    unit, factor = UNITS.get(name, ("s", 1.0))
    here, *beside = (f"{value * factor:9.3f} {unit}" for value in values)
    ratio = f"  beside {beside[0]}  ratio {values[0] / values[1]:.2f}" if beside else ""
    return f"{name:15} {here}{ratio}"


if __name__ == "__main__":
    main()
