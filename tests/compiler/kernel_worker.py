"""What the tests of building run in other processes: `kernel_worker.py HEIGHTS LOG` calls one kernel for each height.

Answers the heights with a wrong result, and what was imported. Each build leaves a file in LOG, when it begins.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tvmconvgrad as cg

OP = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 4, 16)
)


def shapes(height: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The inputs' shapes."""
    return (2, height, 5, 4), (2, height, 5, 16)


def wrong(height: int) -> bool:
    """Whether a result is not what it must be: as many ones are summed as taps meet elements."""
    result = OP(*(np.ones(shape, np.float32) for shape in shapes(height)))
    rows = np.array([height - 1, height, height - 1])
    expected = 2.0 * rows[:, None] * np.array([4, 5, 4])
    return not np.array_equal(result, np.broadcast_to(expected[:, :, None, None], result.shape))


def main(heights: str, log: str) -> None:
    """Wait for a line on standard input, then work."""
    if log:
        count_builds(Path(log))
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    answer = {"wrong": [height for height in json.loads(heights) if wrong(height)]}
    print(json.dumps({**answer, "heavy": sorted({"tvm", "tvm_ffi", "torch"} & set(sys.modules))}), flush=True)


def count_builds(log: Path) -> None:
    """Leave a file for each build."""
    from tvmconvgrad.compiler import service

    build = service.compile_by

    def counted(worker: Any, order: service.Order, *rest: Any) -> Any:
        number = len(list(log.iterdir()))
        (log / f"{order.problem.geometry.y[0]}-{number}-{id(order)}").touch()
        return build(worker, order, *rest)

    service.compile_by = counted


if __name__ == "__main__":
    main(*sys.argv[1:])
