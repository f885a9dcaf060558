"""The peers compute what their drivers say: against the tests' own reference, in every kind of layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.cases.case import assert_same
from tests.support.cases.convolution import Convolution, operands
from tests.support.oracles import reference
from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.variants import PEERS, missing, peers
from tvmconvgrad.bench.workers.session import Session
from tvmconvgrad.layers import KINDS, Layer


def layer(op: str = "Convolution", rank: int = 2, **changes: object) -> Layer:
    fields = {"name": "a", "op": op, "batch": 2, "channels": 4, "filters": 6}
    return Layer(**{**fields, "input_size": (7, 6, 5)[:rank], "kernel": (3, 2, 2)[:rank], **changes})  # type: ignore[arg-type]


LAYERS = {
    "plain": layer(),
    "grouped and strided": layer(groups=2, strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 0)),
    "depthwise": layer(groups=4, channels=4, filters=4),
    "dilated": layer(dilations=(2, 3)),
    "1d": layer(rank=1, strides=(2,)),
    "3d": layer(rank=3),
    "unequal pads": layer(pads_begin=(0, 1), pads_end=(2, 0)),
    "transposed": layer("ConvTranspose", strides=(2, 2), output_padding=(1, 0)),
    "transposed, grouped": layer("ConvTranspose", groups=2, pads_begin=(1, 1), pads_end=(1, 1)),
    "transposed, dilated, 1d": layer("ConvTranspose", rank=1, dilations=(2,)),
}
UNSAID = {"unequal pads"}  # by PyTorch


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    installed = [name for name in PEERS if not missing([name])]
    if not installed:
        pytest.skip("neither oneDNN nor PyTorch is installed")
    with Session(peers(installed), choose_cpus(1)) as found:
        yield found


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_peers(session: Session, name: str, data_format: str) -> None:
    for kind in KINDS:
        problem = LAYERS[name].select(kind, data_format).problem
        g = problem.geometry
        sizes = (g.batch, g.groups, g.c, g.o, g.x, g.y, g.k, g.strides, g.dilations, g.pads_begin, g.pads_end)
        convolution, job = Convolution(*sizes), Job.of(problem)
        if kind == "forward":
            job = job.as_forward()
            assert job.operator == LAYERS[name].op
        tensors = operands(convolution, job.result)
        exact = reference.gradient(convolution, job.result, dict(tensors))
        prepared = session.prepare(job, tensors)
        assert all(label.startswith("PyTorch") and name in UNSAID for label in prepared.refusals), prepared.refusals
        assert prepared.ready
        for found in prepared.ready.values():
            assert_same(found.result, exact.astype(np.float32))
        times = session.time(prepared, rounds=2)
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in times.values())
