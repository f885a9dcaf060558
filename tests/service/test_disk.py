"""A disk without room is named, and no compiler is said to be missing."""

from __future__ import annotations

import subprocess
import sys

# A limit for the size of a file stands for a full disk: what a program writes beyond it fails in the same way.
_PROGRAM = """
import resource, sys
import tvmconvgrad as cg
from tvmconvgrad.targets import parse_target
from tvmconvgrad.compiling import compiler
from tvmconvgrad.compiling.missing import MissingTool
op = cg.ConvolutionBackpropFilters(
    strides=(1,), dilations=(1,), pads_begin=(1,), pads_end=(1,), filter_shape=(3, 4, 16)
)
problem = op.problem((2, 7, 4), (2, 7, 16))
for size in (1 << 14, 1 << 10):  # too little for a library, and for an object
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        compiler.compile_problem(problem, parse_target())
    except OSError as error:
        print(type(error).__name__, error.errno, error.filename)
    except MissingTool as error:
        print(error)
"""


def test_linking_without_room() -> None:
    words = [sys.executable, "-c", _PROGRAM]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        kind, number, folder = line.split()
        assert (kind, number) == ("OSError", "27")  # EFBIG
        assert "tvmconvgrad-" in folder
