"""How long a fresh process takes until it has called 20 kernels that are in the cache.

    python benchmarks/second_start.py [--beside CHECKOUT]

The median of several processes, in seconds: the start of Python itself, imports, the first kernel, the other 19. With
`--beside` also those of another checkout of this project, in turn, and the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]

RUNS = 9
CHILD = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import tvmconvgrad as cg
imported = time.perf_counter()
op = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 4, 8)
)
ends = []
for height in range(4, 24):
    op(np.ones((1, height, 5, 4), np.float32), np.ones((1, height, 5, 8), np.float32))
    ends.append(time.perf_counter())
steps = {"import numpy": numpy - begin, "import tvmconvgrad": imported - numpy, "first kernel": ends[0] - imported,
         "19 others": ends[-1] - ends[0], "all": ends[-1] - begin}
print(json.dumps({"steps": steps, "heavy": sorted({"tvm", "tvm_ffi", "torch"} & set(sys.modules))}))
"""


def main() -> None:
    """Fill caches, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="a folder with another state of this project")
    options = parser.parse_args()
    checkouts = [HERE, *([options.beside.resolve()] if options.beside else [])]
    with ExitStack() as stack:
        folders = [stack.enter_context(tempfile.TemporaryDirectory(prefix="tvmconvgrad-benchmark-")) for _ in checkouts]
        own = [{"PYTHONPATH": str(path), "TVMCONVGRAD_CACHE_DIR": cache} for path, cache in zip(checkouts, folders)]
        environments = [{**os.environ, **each} for each in own]
        for environment in environments:
            start(environment)
        rounds = [[start(environment) for environment in environments] for _ in range(RUNS)]
    answers = list(zip(*rounds))
    for name in rounds[0][0]["steps"]:
        here, *beside = (median(answer["steps"][name] for answer in each) for each in answers)
        ratio = f"  beside {beside[0]:7.3f} s  ratio {here / beside[0]:.2f}" if beside else ""
        print(f"{name:20} {here:7.3f} s{ratio}")
    print("imported besides:", ", ".join(answers[0][0]["heavy"]) or "neither TVM nor torch")


def start(environment: dict[str, str]) -> dict[str, dict[str, float]]:
    """What a fresh process measured."""
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer: dict[str, dict[str, float]] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
