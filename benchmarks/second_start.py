"""How long a fresh process takes until it has called 20 kernels that are in the cache.

    python benchmarks/second_start.py

The median of several processes, in seconds: the start of Python itself, imports, the first kernel, the other 19.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from statistics import median

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
    """Fill a cache, then measure."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-benchmark-") as folder:
        environment = {**os.environ, "TVMCONVGRAD_CACHE_DIR": folder}
        start(environment)
        answers = [start(environment) for _ in range(RUNS)]
    for name in answers[0]["steps"]:
        print(f"{name:20} {median(answer['steps'][name] for answer in answers):7.3f} s")
    print("imported besides:", ", ".join(answers[0]["heavy"]) or "neither TVM nor torch")


def start(environment: dict[str, str]) -> dict[str, dict[str, float]]:
    """What a fresh process measured."""
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    answer: dict[str, dict[str, float]] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
