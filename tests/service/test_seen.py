"""What a program can see of its kernels: records of logging, verbose lines, and a line on a terminal."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.service.conftest import Acting
from tvmconvgrad.common import process, verbose
from tvmconvgrad.compiler import service

OP = cg.ConvolutionBackpropData(strides=(2,), dilations=(1,), pads_begin=(0,), pads_end=(0,))
SHAPES = (1, 3, 2), (2, 1, 2)
NAMED = "ConvolutionBackpropData f32: output_delta NXC 1x3x2, filter XIO 2x1x2 -> input_delta NXC 1x6x1; "
PROGRAM = """
import numpy as np
import tvmconvgrad as cg
op = cg.ConvolutionBackpropData(strides=(2,), dilations=(1,), pads_begin=(0,), pads_end=(0,))
data, weights, out = np.ones((1, 3, 2), "f"), np.ones((2, 1, 2), "f"), np.empty((1, 12, 1), "f")
op(data, weights)
op(data[:, ::-1], weights)
op(data, weights, out=out[:, ::2])
op.compile((0, 3, 2), (2, 1, 2))(data[:0], weights)
"""


def records(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert {record.name for record in caplog.records} <= {"tvmconvgrad"}
    assert all(record.levelno == logging.DEBUG for record in caplog.records)
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_records_say_where_a_kernel_comes_from(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.DEBUG, "tvmconvgrad")
    process.forget()
    kernel = OP.compile(*SHAPES)
    (built,) = records(caplog)
    assert built.startswith(NAMED)
    assert re.search(r": built in [0-9]+ ms by ", built)
    assert built.endswith(f" by {kernel.schedule}")
    OP.compile(*SHAPES)
    (found,) = records(caplog)
    assert found.startswith(NAMED)
    assert found.endswith(": found in memory")
    process.forget()
    OP.compile(*SHAPES)
    (found,) = records(caplog)
    assert found.endswith(": found on disk")
    data, weights = np.ones(SHAPES[0], np.float32), np.ones(SHAPES[1], np.float32)
    kernel(data, weights)
    assert records(caplog) == []


def unaligned_ones(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    size = int(np.prod(shape)) * 4
    found = np.zeros(size + 1, np.uint8)[1:].view(np.float32).reshape(shape)
    found[...] = 1
    return found


def test_records_say_why_a_tensor_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    kernel = OP.compile(*SHAPES)
    data, weights, long = np.ones(SHAPES[0], np.float32), np.ones(SHAPES[1], np.float32), np.ones((1, 6, 2), np.float32)
    data_is = "ConvolutionBackpropData: copied output_delta, because it is "
    caplog.set_level(logging.DEBUG, "tvmconvgrad")
    kernel(data[:, ::-1], weights)
    assert records(caplog) == [data_is + "reversed: shape (1, 3, 2), strides (24, -8, 4)"]
    kernel(long[:, ::2], weights)
    assert records(caplog) == [data_is + "not contiguous: shape (1, 3, 2), strides (48, 16, 4)"]
    kernel(np.broadcast_to(np.float32(1), SHAPES[0]), weights)
    assert records(caplog) == [data_is + "broadcast: shape (1, 3, 2), strides (0, 0, 0)"]
    kernel(unaligned_ones(SHAPES[0]), weights)
    assert records(caplog) == [data_is + "not aligned to 4 bytes"]
    kernel(data, unaligned_ones(SHAPES[1]))
    assert records(caplog) == [data_is.replace("output_delta", "filter") + "not aligned to 4 bytes"]
    copied = "ConvolutionBackpropData: computed out in a temporary and copied it, because it "
    out = np.ones((1, 12, 1), np.float32)
    assert kernel(data, weights, out=out[:, ::2])[0, 0, 0] == 2
    assert records(caplog) == [copied + "is not contiguous: shape (1, 6, 1), strides (48, 8, 4)"]
    kernel(data, weights, out=data.reshape(1, 6, 1))
    assert records(caplog) == [copied + "shares memory with output_delta"]


def test_records_of_pytorchs_tensors(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    kernel = OP.compile(*SHAPES)
    data, weights = torch.ones(SHAPES[0]), torch.ones(SHAPES[1])
    caplog.set_level(logging.DEBUG, "tvmconvgrad")
    expected = kernel(data, weights)
    assert records(caplog) == []
    assert torch.equal(kernel(torch.ones(1, 2, 3).transpose(1, 2), weights), expected)
    (why,) = records(caplog)
    assert why.endswith("copied output_delta, because it is not contiguous: shape (1, 3, 2), strides (6, 1, 3)")
    negative = torch.complex(torch.zeros(SHAPES[0]), -data).conj().imag
    assert negative.is_neg()
    assert torch.equal(kernel(negative.contiguous(), weights), expected)
    records(caplog)


def test_verbose_prints_a_line_a_build_and_one_a_call(tmp_path: Path) -> None:
    environment = os.environ | {"TVMCONVGRAD_CACHE_DIR": str(tmp_path), "TVMCONVGRAD_VERBOSE": "1"}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    first, *lines = done.stdout.splitlines()
    assert first.startswith("tvmconvgrad_verbose,v1,info,template:operation,engine,operator,implementation,")
    fields = [line.split(",") for line in lines]
    names = first.partition("template:")[2].split(",")
    assert {len(line) for line in fields} == {3 + len(names)}
    assert [line[3] for line in fields] == ["create:cache_miss", "exec", "exec", "exec", "exec"]
    assert {tuple(line[:3]) for line in fields} == {("tvmconvgrad_verbose", "v1", "primitive")}
    shown = dict(zip(names, fields[1][3:]))
    assert float(shown.pop("exec_time")) < 1000
    target, implementation = shown.pop("target"), shown.pop("implementation")
    kernel = OP.compile(*SHAPES)
    assert (target, implementation) == (str(kernel.target).replace(",", ";"), kernel.schedule.partition("(")[0])
    assert shown == {
        "operation": "exec",
        "engine": "cpu",
        "operator": "ConvolutionBackpropData",
        "tensors": "output_delta:f32:NXC:1x3x2 filter:f32:XIO:2x1x2 input_delta:f32:NXC:1x6x1",
        "attributes": "strides:2 pads:0/0 dilations:1 groups:1",
    }
    assert 10 < float(fields[0][-1]) < 120_000  # a build's milliseconds


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_is_printed_otherwise(value: str) -> None:
    environment = os.environ | {"TVMCONVGRAD_VERBOSE": value}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_nonsense_is_refused_before_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = OP.compile(*SHAPES)
    monkeypatch.setenv("TVMCONVGRAD_VERBOSE", "yes")
    verbose.forget()
    with pytest.raises(ValueError, match="TVMCONVGRAD_VERBOSE: got 'yes', expected 0 or 1"):
        kernel(np.ones(SHAPES[0], np.float32), np.ones(SHAPES[1], np.float32))
    monkeypatch.delenv("TVMCONVGRAD_VERBOSE")
    verbose.forget()


def seen_on_a_terminal(acting: Acting, monkeypatch: pytest.MonkeyPatch, act: str) -> str:
    """What standard error gets while a kernel is built, where that is a terminal."""
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        service.find_or_build(acting.order(1, act))
        os.set_blocking(ours, False)
        seen = b""
        with suppress(BlockingIOError), open(ours, "rb", buffering=0) as screen:
            while part := screen.read(1000):
                seen += part
        return seen.decode()


def test_a_terminal_says_what_is_waited_for(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    seen = seen_on_a_terminal(acting, monkeypatch, "sleep 1.5")
    line = f"tvmconvgrad: building {acting.order(1)}, once; the cache keeps it"[:79]
    assert seen == f"{line}\r\x1b[K"


def test_a_terminal_says_nothing_of_a_short_wait(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    service.find_or_build(acting.order(0))  # a worker is there
    begin = time.monotonic()
    seen = seen_on_a_terminal(acting, monkeypatch, "make")
    assert seen == "" or time.monotonic() - begin > 1


def test_nothing_is_said_where_there_is_no_terminal(
    acting: Acting, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.find_or_build(acting.order(1, "sleep 1.5"))
    assert capfd.readouterr() == ("", "")
