"""Running a scheduled program that is no kernel of the package's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from tvmconvgrad.compiler import pipeline
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.schedules import Scheduled


def run(scheduled: Scheduled, inputs: Sequence[Any], target: Target) -> Any:
    """The result of a program on arrays of its shapes, through TVM's own runtime."""
    with tvm.transform.PassContext(disabled_pass=list(pipeline.DISABLED)):
        built = tvm.compile(scheduled.module, target=tvm.target.Target(target.to_dict()), tir_pipeline=pipeline.NAME)
    *_, out = scheduled.module["main"].params
    result = np.empty([int(extent) for extent in out.shape], str(scheduled.expression.results[0].dtype))
    built.jit()["main"](*inputs, result)
    return result
