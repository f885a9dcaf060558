"""What a bundle of ResNet-50's gradients costs, and whether its kernels are as fast from C as built ones from Python.

    python benchmarks/bundle.py [--threads N] [--target TARGET]...

Size, time to build, and time to load; seconds from the start of Python's imports to the first result where nothing
but NumPy is installed; and for each kernel the time of a call from Python by that of one from C, interleaved, in one
process each: the median over rounds, above 1 where C is faster. Pin it to as many CPUs as threads (taskset -c).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

import tvmconvgrad as cg
from tvmconvgrad.kernels import get_kernel
from tvmconvgrad.layers import LayerGradient, suite
from tvmconvgrad.machines.targets import DEFAULT, parse_target

ROUNDS, LONG_ENOUGH, STARTS = 15, 0.02, 9
NAME = "resnet_50"
FIRST_RESULT = """
import sys, time
begin = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import tvmconvgrad as cg
imported = time.perf_counter()
bundle = cg.load(sys.argv[1])
loaded = time.perf_counter()
kernel = bundle[sys.argv[2]]
kernel(*(np.ones(shape, np.float32) for shape in kernel.problem.input_shapes))
end = time.perf_counter()
print(numpy - begin, imported - numpy, loaded - imported, end - loaded, end - begin)
"""
STEPS = ("import numpy", "import tvmconvgrad", "load", "first result", "all")


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", action="append")
    words = parser.parse_args()
    targets = words.target or [DEFAULT]
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-benchmark-") as folder:
        begin = time.perf_counter()
        bundle = cg.build(NAME, Path(folder, "bundle"), targets=targets, name=NAME)
        seconds = time.perf_counter() - begin
        sizes = {path.name: path.stat().st_size for path in bundle.iterdir()}
        print(
            f"{len(cg.load(bundle))} kernels for {', '.join(targets)}: built in {seconds:.1f} s, TVM's import included"
        )
        print(f"lib{NAME}.so {sizes[f'lib{NAME}.so'] / 1024:.0f} KiB, the folder {sum(sizes.values()) / 1024:.0f} KiB")
        first_result(bundle, Path(folder))
        compare(bundle, Path(folder), words.threads, str(cg.load(bundle).target))


def first_result(bundle: Path, folder: Path) -> None:
    """Print how long a fresh process takes that sees NumPy and the package, and nothing else."""
    site = folder / "site"
    site.mkdir()
    packages = Path(np.__file__).parents[1]
    sources = [packages / "numpy", packages / "numpy.libs", Path(cg.__file__).parent]
    for source in filter(Path.exists, sources):
        (site / source.name).symlink_to(source)
    command = [sys.executable, "-S", "-c", FIRST_RESULT, str(bundle), "res2a_branch2a_filters"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    answers = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(STARTS)
    ]
    rows = [list(map(float, answer.stdout.split())) for answer in answers]
    print(", ".join(f"{step} {median(column):.3f} s" for step, column in zip(STEPS, zip(*rows))))


def compare(bundle: Path, folder: Path, threads: int, target: str) -> None:
    """Print Python's time by C's for each kernel, and the means."""
    cg.set_num_threads(threads)
    gradients = [gradient for layer in suite(NAME) for gradient in layer.gradients()]
    ratios = []
    with start_c_program(bundle, folder, threads) as program:
        for place, (name, gradient) in enumerate(zip(cg.load(bundle), gradients, strict=True)):
            python, c = measured(place, gradient, target, program)
            ratios.append(median(p / q for p, q in zip(python, c)))
            print(
                f"{name:28} Python {median(python) * 1e3:8.3f} ms, C {median(c) * 1e3:8.3f} ms, ratio {ratios[-1]:.3f}"
            )
        assert program.stdin
        program.stdin.close()
    mean = geometric_mean(ratios)
    print(f"Python's time by C's: geometric mean {mean:.3f}, least {min(ratios):.3f}, most {max(ratios):.3f}")


def start_c_program(bundle: Path, folder: Path, threads: int) -> subprocess.Popen[str]:
    """The program that times kernels, waiting for lines."""
    program = folder / "time_kernels"
    options = ["-std=c99", "-O2", f'-DHEADER="{NAME}.h"', f"-DPREFIX={NAME}", f"-I{bundle}"]
    link = [f"-L{bundle}", f"-l{NAME}", f"-Wl,-rpath,{bundle}"]
    source = Path(__file__).with_name("time_kernels.c")
    subprocess.run(["cc", *options, str(source), *link, "-o", str(program)], check=True)
    return subprocess.Popen([program, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def measured(
    place: int, gradient: LayerGradient, target: str, program: subprocess.Popen[str]
) -> tuple[list[float], list[float]]:
    """Seconds of a call from Python and from C, of each round."""
    kernel = get_kernel(gradient.problem, parse_target(target))
    problem = kernel.problem
    first, second, out = (aligned(shape) for shape in (*problem.input_shapes, problem.output_shape))
    kernel(first, second, out)
    begin = time.perf_counter()
    kernel(first, second, out)
    loops = max(1, round(LONG_ENOUGH / (time.perf_counter() - begin)))
    ask(program, place, 1)
    python, c = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(loops):
            kernel(first, second, out)
        python.append((time.perf_counter() - begin) / loops)
        c.append(ask(program, place, loops))
    return python, c


def ask(program: subprocess.Popen[str], place: int, loops: int) -> float:
    """Seconds of a call from C."""
    assert program.stdin
    assert program.stdout
    program.stdin.write(f"{place} {loops}\n")
    program.stdin.flush()
    return float(program.stdout.readline())


def aligned(shape: tuple[int, ...]) -> Any:
    """Small integers, at an address that is a multiple of 64, as the C program has them."""
    count = int(np.prod(shape))
    memory = np.empty(count + 16, np.float32)
    begin = -(memory.ctypes.data // 4) % 16
    values = memory[begin : begin + count]
    values[...] = np.arange(count) % 5 - 2
    return values.reshape(shape)


if __name__ == "__main__":
    main()
