"""The report's arithmetic, on numbers made by hand."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from tests.bench.conftest import measurement
from tvmconvgrad.bench.results.measurement import Column, Ratio, columns
from tvmconvgrad.bench.results.summary import summarise
from tvmconvgrad.bench.results.table import Table

LABELS = ["ours", "oneDNN plain", "oneDNN blocked", "PyTorch contiguous", "PyTorch channels_last", "ours NCX"]
ROUNDS = {
    "ours": [0.010, 0.020, 0.010],
    "oneDNN plain": [0.020, 0.020, 0.015],
    "PyTorch contiguous": [0.030, 0.030, 0.030],
    "PyTorch channels_last": [0.005, 0.040, 0.005],
}
PLAIN = Column("oneDNN plain", ("oneDNN plain",))


def test_one_gradient() -> None:
    found = measurement(ROUNDS)
    assert found.seconds == 0.010
    assert found.gflops == pytest.approx(100)
    assert found.intensity == 10
    assert found.workspace_fits
    assert not measurement(ROUNDS, workspace_bytes=10**8 + 1).workspace_fits


def test_ratios_are_of_the_same_round() -> None:
    found = measurement(ROUNDS)
    assert found.ratio(["oneDNN plain"]) == pytest.approx(Ratio(1.5, 1.0, 2.0))
    assert found.ratio(["oneDNN blocked"]) is None
    # channels_last is the faster one: its median counts, not its mean
    assert found.ratio(["PyTorch contiguous", "PyTorch channels_last"]) == pytest.approx(Ratio(0.5, 0.5, 2.0))


def test_columns() -> None:
    titles = {column.title: column.labels for column in columns(LABELS)}
    assert list(titles) == ["oneDNN plain", "oneDNN blocked", "PyTorch", "ours NCX"]
    assert titles["PyTorch"] == ("PyTorch contiguous", "PyTorch channels_last")


def test_geometric_means() -> None:
    measured = [
        measurement({"ours": [1.0], "oneDNN plain": [4.0]}, layer="a"),
        measurement({"ours": [1.0], "oneDNN plain": [0.25]}, layer="b", suite="other", is_wide=False),
        measurement({"ours": [4.0]}, layer="c", is_wide=False, is_depthwise=True),
        measurement({"ours": [1.0], "oneDNN plain": [9.0]}, layer="d", operator="ConvolutionBackpropData"),
        measurement({"ours": [1.0], "oneDNN plain": [7.0]}, layer="a", dtype="f16"),
    ]
    groups = {(g.title, g.operator, g.dtype): g for g in summarise(measured, [PLAIN], peak=2.0)}
    filters = {title: g for (title, operator, dtype), g in groups.items() if (operator, dtype) == (F, "f32")}
    assert list(filters) == ["net", "other", "all", "depthwise layers", "dense, 64 channels and more"]
    mean = filters["all"].ratios["oneDNN plain"]
    assert mean is not None
    assert (mean.mean, mean.least, mean.where, mean.terms) == (pytest.approx(1.0), 0.25, "other/b", 2)
    assert filters["all"].count == 3
    # 1 GFLOP/s, 1 GFLOP/s and a quarter of it, of a peak of 2
    assert filters["all"].share.mean == pytest.approx((0.5 * 0.5 * 0.125) ** (1 / 3))
    assert filters["all"].share.where == "net/c"
    assert filters["depthwise layers"].ratios["oneDNN plain"] is None
    assert filters["dense, 64 channels and more"].count == 1
    assert groups["net", "ConvolutionBackpropData", "f32"].count == 1
    assert groups["net", F, "f16"].count == 1
    json.dumps([group.to_dict() for group in groups.values()])


F = "ConvolutionBackpropFilters"


def test_lines() -> None:
    table = Table(columns(LABELS), peak=200.0)
    refused = {"oneDNN blocked": "unimplemented (primitive_desc_create)"}
    found = measurement(ROUNDS, refusals=refused, differences={"oneDNN plain": "3 of 4 elements differ"})
    line = table.line(found).plain
    assert line.split()[:7] == ["conv", "filters", "f32", "10.00", "100.0", "50%", "1.50"]
    assert "(1.00-2.00)!" in line
    assert "unimplemented " in line
    assert line.endswith("95.4 MiB")
    assert table.line(measurement(ROUNDS, workspace_bytes=10**9)).plain.endswith("> inputs + output")
    (note,) = table.notes(found)
    assert "oneDNN plain: its result differs: 3 of 4 elements differ" in note.plain
    console = Console(width=400, record=True, file=StringIO())
    console.print(table.summary(summarise([found], columns(LABELS), 200.0)))
    text = console.export_text()
    assert "net (1), f32" in text
    assert "least 50%, conv" in text


def test_json() -> None:
    found = json.loads(json.dumps(measurement(ROUNDS).to_dict()))
    assert found["milliseconds"]["ours"] == pytest.approx(10)
    assert found["rounds"]["oneDNN plain"] == [0.020, 0.020, 0.015]
