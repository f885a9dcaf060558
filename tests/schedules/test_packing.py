"""What tasks pack: programs that once could not be scheduled."""

from __future__ import annotations

from tests.support.case import Case
from tests.support.convolution import Convolution


def test_columns_whose_first_positions_differ_from_task_to_task() -> None:
    """Tasks of phases that begin at different positions pack differently many: no extent of a loop is a constant."""
    import tvmconvgrad
    from tvmconvgrad import schedules
    from tvmconvgrad.targets import parse_target

    conv = Convolution(16, 1, 256, 512, (16, 16), (8, 8), (4, 4), (2, 2), (1, 1), (1, 1), (1, 1))
    case = Case("ConvolutionBackpropData", conv, "NCX", "OIX")
    problem = getattr(tvmconvgrad, case.operator)(**case.attributes).problem(*case.call.shapes, dtype="f32")
    target = parse_target("llvm -mcpu=x86-64-v3 -mtriple=x86_64-linux-gnu")
    given = {"packs": 1, "column_ranges": 4}
    assert schedules.schedule(problem, target, "positions-channels", given).module is not None
