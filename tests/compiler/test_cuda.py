"""Kernels for GPUs, compiled by CUDA's toolkit: what is in them, and what is said where they cannot be made."""

from __future__ import annotations

import os
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.building.compiling_here import compile_here
from tvmconvgrad import schedules
from tvmconvgrad.common import process
from tvmconvgrad.common.errors import MissingToolkit, TooLarge
from tvmconvgrad.compiler.cuda import compiler, nvrtc, toolkit
from tvmconvgrad.compiler.cuda.codegen import generate
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.spec import Problem

needs_nvcc = pytest.mark.skipif(toolkit.find_nvcc() is None, reason="CUDA's nvcc is not installed")
OP = cg.ConvolutionBackpropFilters(
    strides=(2, 2), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 8, 16)
)
SHAPES = (2, 9, 9, 8), (2, 5, 5, 16)
STEM = cg.ConvolutionBackpropFilters(
    strides=(2, 2), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 3, 16)
)
SM_90 = parse_target("cuda -arch=sm_90")
_MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2


def problem(dtype: str = "f32") -> Problem:
    return OP.problem(*SHAPES, dtype=dtype)


def kinds(image: bytes) -> list[int]:
    """What a fat binary holds, by the kinds of its parts."""
    magic, _, header, size = struct.unpack_from("<IHHQ", image)
    assert magic == _MAGIC
    found, at = [], header
    while at < header + size:
        kind, _, length, content = struct.unpack_from("<HHIQ", image, at)
        found.append(kind)
        at += length + content
    return found


@pytest.mark.parametrize(("arch", "early"), [("sm_80", False), ("sm_90", True), ("sm_90a", True)])
def test_kernels_wait_for_the_one_before_where_they_may_begin_early(arch: str, early: bool) -> None:
    """What is packed is multiplied, and its sums are added up: three kernels, of which two wait before they read."""
    given = {"split_k": 3, "in_cluster": 1} if early else {"split_k": 3}
    long = STEM.problem((64, 17, 17, 3), (64, 9, 9, 16), dtype="f16")
    target = parse_target(f"cuda -arch={arch}")
    program = generate(schedules.schedule(long, target, "gemm", given).module, target)
    assert [launch.early for launch in program.launches] == [False, early, early]
    bodies = [
        part[part.index("{\n") + 2 :].lstrip() for part in program.source.split("__global__")[1:] if "{\n" in part
    ]
    wait, let_begin = (f'asm volatile("griddepcontrol.{word}' for word in ("wait", "launch_dependents"))
    assert [body.startswith(wait) for body in bodies] == [False, early, early]
    assert [let_begin in body for body in bodies] == [early, early, False]
    assert [Launch.from_dict(launch.to_dict()) for launch in program.launches] == list(program.launches)


@needs_nvcc
@pytest.mark.parametrize(
    ("arch", "parts"), [("sm_80", {PTX, MACHINE_CODE}), ("sm_90", {PTX, MACHINE_CODE}), ("sm_90a", {MACHINE_CODE})]
)
def test_machine_code_and_ptx_to_go_on_with(arch: str, parts: set[int]) -> None:
    image, facts = compiler.compile_problem(problem(), parse_target(f"cuda -arch={arch}"), "naive")
    assert set(kinds(image)) == parts
    assert facts["compiler"].startswith("nvcc ")
    (launch,) = (Launch.from_dict(entry) for entry in facts["launches"])
    blocks = -(-3 * 3 * 8 * 16 // 256)
    assert launch == Launch("main_kernel", (blocks, 1, 1), (256, 1, 1), 0, ("first", "second", "out"))
    usage = facts["usage"]["main_kernel"]
    assert 0 < usage["registers"] <= 255
    assert (usage["shared_bytes"], usage["spilled_bytes"], facts["workspace_bytes"]) == (0, 0, 0)


@pytest.mark.parametrize(("side", "wide"), [(64, False), (1 << 14, True)])
def test_indices_are_as_wide_as_the_tensors_need(side: int, wide: bool) -> None:
    attributes = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
    shape = (1, side, side, 16)  # 2**32 elements, if they are many
    operator = cg.ConvolutionBackpropData(**attributes, output_shape=shape)
    built = compiler.build(operator.problem(shape, (3, 3, 16, 16)), SM_90, "naive")
    kernel = built.program.source.partition('extern "C" __global__')[2]
    assert ("(int64_t)blockIdx.x" in kernel) == wide
    (launch,) = built.program.launches
    assert prod(launch.grid) * launch.block[0] == side * side * 16
    assert max(launch.grid[1:]) < 65536


@needs_nvcc
def test_architectures_that_the_toolkit_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"^target: arch 'sm_42' is unknown to nvcc .*, expected one of .*sm_90"):
        compiler.compile_problem(problem(), parse_target("cuda -arch=sm_42"))


def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "find_nvcc", lambda: None)
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    compile_here(monkeypatch)


def test_no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    no_toolkit(monkeypatch)
    with pytest.raises(MissingToolkit, match=r"install nvcc .* CUDA_HOME; or pip install nvidia-cuda-nvrtc"):
        OP.compile(*SHAPES, target="cuda -arch=sm_90")
    built = compiler.build(problem(), SM_90)  # the C++ takes none
    assert "__global__" in built.program.source
    result = OP(np.ones(SHAPES[0], np.float32), np.ones(SHAPES[1], np.float32))
    assert result[1, 1, 0, 0] == 2 * 5 * 5  # the middle tap meets every position of both images


def test_a_toolkit_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert toolkit.find_nvcc() == str(nvcc)
    with pytest.raises(MissingToolkit, match="install nvcc"):
        compiler.compile_problem(problem(), SM_90)


@needs_nvcc
def test_a_source_that_is_refused() -> None:
    with pytest.raises(MissingToolkit, match=r"(?s)failed:.*nothing;"):
        toolkit.compile_source("nothing;", "sm_90")


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (Launch("f", (1, 1, 1), (1024, 2, 1), 0, ()), "f has 2048 threads in a block, and sm_90 has 1024"),
        (Launch("f", (1, 1, 1), (32, 1, 1), 228 << 10, ()), "bytes of shared memory in a block, and sm_90 has 232448"),
        (Launch("f", (1, 65536, 1), (32, 1, 1), 0, ()), "f has 65536 blocks along an axis, and sm_90 has 65535"),
    ],
)
def test_what_no_gpu_can_launch(launch: Launch, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "compile_source", lambda source, arch: toolkit.Code(b"", "", ()))
    with pytest.raises(TooLarge, match=words):
        compiler.compile_program(compiler.Program("", (launch,), 0), SM_90)


@pytest.mark.skipif(nvrtc.find() is None, reason="NVRTC is not installed (pip install nvidia-cuda-nvrtc)")
def test_nvrtc_where_that_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "find_nvcc", lambda: None)
    image, facts = compiler.compile_problem(problem("bf16"), SM_90)
    assert image.startswith(b"\x7fELF")
    assert facts["compiler"].startswith("NVRTC ")
    assert ".target sm_80" in toolkit.to_ptx(compiler.build(problem(), SM_90).program.source, "sm_80")
    with pytest.raises(ValueError, match=r"^target: arch 'sm_42' is unknown to NVRTC"):
        compiler.compile_problem(problem(), parse_target("cuda -arch=sm_42"))


@needs_nvcc
def test_a_kernel_is_kept_and_needs_neither_compiler_nor_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(cache))
    process.forget()
    first = OP.compile(*SHAPES, dtype="f16", target="cuda -arch=sm_80")
    no_toolkit(monkeypatch)
    process.forget()
    again = OP.compile(*SHAPES, dtype="f16", target={"kind": "cuda", "arch": "sm_80"})
    assert str(again) == str(first)
    assert "target    cuda -arch=sm_80" in str(first)
    with pytest.raises(MissingToolkit):
        OP.compile(*SHAPES, dtype="f16", target="cuda -arch=sm_90")


@needs_nvcc
def test_inspect(capsys: Any) -> None:
    from tvmconvgrad.cli import main

    words = ["inspect", "ConvolutionBackpropFilters", "--shapes", "2,9,9,8", "2,5,5,16", "--strides", "2,2"]
    words += ["--pads-begin", "1,1", "--pads-end", "1,1", "--filter-shape", "3,3,8,16", "--target"]
    texts = {}
    for option in ("--cuda", "--asm", "--tir"):
        with pytest.raises(SystemExit) as end:
            main([*words, "cuda -arch=sm_80", option])
        assert not end.value.code
        texts[option] = capsys.readouterr().out
    assert "__global__ void" in texts["--cuda"]
    assert ".target sm_80" in texts["--asm"]
    assert "blockIdx.x" in texts["--tir"]
    with pytest.raises(SystemExit) as end:
        main([*words, "llvm", "--cuda"])
    assert (end.value.code, os.linesep in capsys.readouterr().err.strip()) == (2, False)
