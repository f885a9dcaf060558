"""Intel's oneDNN as a judge, by the benchmark's driver of it; it needs the wheel onednn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Array, Tensors
from tests.support.cases.random_cases import explicit
from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.variants import Variant, missing
from tvmconvgrad.bench.workers.session import Session

PLAIN = Variant("plain", "onednn", "plain")
# what is no attribute of a job, but a part of its own
NOT_ATTRIBUTES = {"data_format", "filter_format", "weights_format", "filter_shape", "weights_shape", "output_shape"}
NOT_ATTRIBUTES |= {"dst_shape"}


class Judge:
    """oneDNN in a process of its own, which it ends on what it refuses late."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def gradient(self, case: Case, tensors: Tensors) -> Array:
        """The canonical result of oneDNN's own operator of the same name, which infers pads and shapes by itself."""
        prepared = self._session.prepare(_job(_understood(case)), tensors)
        assert not prepared.refusals, prepared.refusals
        return prepared.ready[PLAIN.label].result


@contextmanager
def judge() -> Iterator[Judge]:
    """A judge; skips the test where oneDNN is not installed."""
    if missing(["onednn"]):
        pytest.skip("oneDNN is not installed (pip install onednn)")
    with Session([PLAIN], choose_cpus(1)) as session:
        yield Judge(session)


def _understood(case: Case) -> Case:
    """With explicit pads where oneDNN's own rule for same_upper and same_lower leaves the specification.

    In the ConvTranspose operators, and with output_padding, which does not enter its rule; and where its graph takes
    no groups, and the primitive takes no auto_pad.
    """
    grouped = case.operator == "ConvolutionBackpropData" and case.convolution.groups > 1
    if grouped or case.operator.startswith("ConvTranspose") or any(case.output_padding or ()):
        return explicit(case)
    return case


def _job(case: Case) -> Job:
    attributes = {name: value for name, value in case.attributes.items() if name not in NOT_ATTRIBUTES}
    for name in ("pads_begin", "pads_end"):  # required, and ignored, with any other auto_pad
        attributes.setdefault(name, [0] * case.convolution.rank)
    shapes = case.convolution.shapes
    return Job(case.call.operator, attributes, shapes, case.data_format, case.filter_format, case.dtype)
