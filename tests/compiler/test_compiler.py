"""Compiling real problems: for which targets, with which tools, and the words when it cannot be."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.support.cpu.emulation import needs_cross_compiler
from tvmconvgrad.common import process
from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import description, llvm, service
from tvmconvgrad.machines import host
from tvmconvgrad.machines.host import host_features
from tvmconvgrad.machines.targets import parse_target

OP = cg.ConvolutionBackpropFilters(
    strides=(1,), dilations=(1,), pads_begin=(1,), pads_end=(1,), filter_shape=(3, 4, 16)
)
FIRST, SECOND = (2, 7, 4), (2, 7, 16)
ARM = "llvm -mcpu=cortex-a76"
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64's CPUs")
CHECK = np.array([12, 14, 12], np.float32)  # how many products each tap sums


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is built, on disk or in this process."""
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "cache"))
    process.forget()
    yield tmp_path / "cache"
    process.forget()


@pytest.fixture
def no_compiler_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names none."""
    for variable in ("CXX", "CC"):
        monkeypatch.delenv(variable, raising=False)


def right(kernel: Any) -> bool:
    result = kernel(np.ones(FIRST, np.float32), np.ones(SECOND, np.float32))
    return bool((result == CHECK[:, None, None]).all())


def check_target(target: str, *words: str) -> None:
    with pytest.raises(ValueError, match=r"^target: ") as error:
        OP.compile(FIRST, SECOND, target=target)
    for word in words:
        assert word in str(error.value)


def test_a_cpu_that_llvm_does_not_know() -> None:
    check_target("llvm -mcpu=nonsense", "mcpu 'nonsense'", "unknown to LLVM")


def test_a_feature_that_llvm_does_not_know() -> None:
    check_target("llvm -mattr=+nonsense", "+nonsense", "unknown to LLVM")


@on_x86
def test_a_cpu_with_more_than_this_one(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    few = host_features() - {"avx2", "fma", "avx512f"}
    monkeypatch.setattr(host, "host_features", lambda: few)
    for _ in range(2):  # built, and from the cache
        check_target("llvm -mcpu=x86-64-v3", "'llvm -mcpu=x86-64-v3'", "avx2, fma", "this CPU does not have")
    check_target("llvm -mcpu=x86-64 -mattr=+avx2", "avx2")
    assert right(OP.compile(FIRST, SECOND, target="llvm -mcpu=x86-64"))


@on_x86
def test_what_this_cpu_has_is_enough_for_itself() -> None:
    # the two come from different sources: LLVM's table, and the operating system
    assert llvm.required_features(parse_target("llvm -mcpu=native")) <= host_features()
    old = llvm.required_features(parse_target("llvm -mcpu=bdver4"))
    assert {"avx2", "fma4", "xop", "tbm", "sse4a"} <= old
    assert {"avx512f", "avx512_bf16"} <= llvm.required_features(parse_target("llvm -mcpu=znver4"))
    assert llvm.required_features(parse_target("llvm -mcpu=x86-64")) == set()


@on_x86
@pytest.mark.parametrize(
    "option",
    [
        "-mtriple=aarch64-linux-gnu",
        "-mtriple=arm64-apple-darwin",
        "-mtriple=x86_64-pc-windows-msvc",
        "-mcpu=cortex-a76",
        "-mcpu=neoverse-n1",
    ],
)
def test_another_architecture_or_system(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "compile_by", lambda *_: pytest.fail("nothing is to be built"))
    check_target(f"llvm {option}", option, "this machine is x86_64 with linux", "not run")


@on_x86
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("-mcpu=pentium4", "has no 64bit, which code for x86_64 needs"),
        ("-mcpu=i386", "has no 64bit"),
        ("-mcpu=native -mattr=-sse2", "has no sse2"),
        ("-mattr=-64bit-mode", "has no 64bit-mode"),
        ("-mattr=+16bit-mode", "has 16bit-mode, with which no function for x86_64 can be called"),
        ("-mattr=+soft-float", "has soft-float"),
        ("-mattr=+x32", "has x32"),
        ("-mattr=+fma,-nonsense", "feature -nonsense of"),
        ("-mtriple=aarch64-linux-gnu -mattr=+reserve-x1", "has reserve-x1, with which no function for aarch64"),
    ],
)
def test_a_cpu_that_llvm_has_no_code_for(options: str, reason: str) -> None:
    """It ends the process, or makes code that does."""
    with pytest.raises(ValueError, match=r"^target: ") as error:
        llvm.check_cpu(parse_target(f"llvm {options}"))
    assert reason in str(error.value)


@on_x86
@pytest.mark.parametrize("feature", ["egpr", "ndd", "ppx", "push2pop2", "ccmp", "cf", "nf", "zu"])
def test_every_part_of_an_extension_needs_it(feature: str) -> None:
    target = parse_target(f"llvm -mcpu=x86-64-v3 -mattr=+{feature}")
    llvm.check_cpu(target)
    assert "apx" in llvm.required_features(target)


@on_x86
def test_a_cpu_of_another_architecture_that_its_name_does_not_tell() -> None:
    check_target("llvm -mcpu=kryo", "mcpu 'kryo'", "is a CPU of aarch64, expected with -mtriple=aarch64-linux-gnu")


def test_a_cpu_of_another_architecture_than_the_triples() -> None:
    target = parse_target("llvm -mcpu=znver3 -mtriple=aarch64-linux-gnu")
    with pytest.raises(ValueError, match=r"^target: .* is a CPU of x86_64, expected with -mtriple=x86_64-linux-gnu$"):
        llvm.build(OP.problem(FIRST, SECOND), target)


@on_x86
def test_code_for_another_architecture() -> None:
    built = llvm.build(OP.problem(FIRST, SECOND), parse_target("llvm -mcpu=cortex-a72"))
    assert "fmla" in built.executable.mod.inspect_source("s")  # which no x86 has
    assert llvm.required_features(parse_target("llvm -mcpu=cortex-a72")) == {"asimd"}


@on_x86
@needs_cross_compiler
def test_a_library_for_another_architecture(no_compiler_named: None) -> None:
    library, facts = llvm.compile_problem(OP.problem(FIRST, SECOND), parse_target(ARM))
    assert library.startswith(b"\x7fELF")
    assert library[18] == 183  # AArch64, in ELF's header
    assert {"asimd", "asimdhp"} <= set(facts["requires"])


@on_x86
def test_no_cross_compiler(monkeypatch: pytest.MonkeyPatch, no_compiler_named: None, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingLinker) as error:
        llvm.compile_problem(OP.problem(FIRST, SECOND), parse_target(ARM))
    for word in ("C compiler for aarch64", "aarch64-linux-gnu-gcc", "Debian's gcc-aarch64-linux-gnu", "in CXX"):
        assert word in str(error.value)
    assert "\n" not in str(error.value)


@on_x86
@pytest.mark.parametrize("variable", ["CXX", "CC"])
def test_a_compiler_for_this_machine_alone(
    variable: str, monkeypatch: pytest.MonkeyPatch, no_compiler_named: None
) -> None:
    monkeypatch.setenv(variable, "cc")
    with pytest.raises(MissingLinker, match=r"C compiler for aarch64 .*, or name it in CXX; cc failed"):
        llvm.compile_problem(OP.problem(FIRST, SECOND), parse_target(ARM))


def test_schedules_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=r"schedule: 'nonsense' is unknown .*, expected one of"):
        OP.compile(FIRST, SECOND, schedule="nonsense")
    with pytest.raises(TypeError, match="schedule: 3 is not a name"):
        OP.compile(FIRST, SECOND, schedule=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("variable", ["CXX", "CC"])
def test_no_compiler(variable: str, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    kernel = OP.compile(FIRST, SECOND)
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(MissingLinker, match="install gcc or clang"):
        OP.compile((2, 8, 4), (2, 8, 16))
    monkeypatch.setenv(variable, "/nowhere/c++")
    with pytest.raises(MissingLinker, match=r"/nowhere/c\+\+ cannot be run"):
        OP.compile((2, 8, 4), (2, 8, 16))
    process.forget()
    assert right(OP.compile(FIRST, SECOND))  # in the cache: needs none
    assert right(kernel)


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(MissingLinker, match="/bin/false failed: /bin/false -x c "):
        OP.compile(FIRST, SECOND)
    monkeypatch.delenv("CXX")
    assert right(OP.compile(FIRST, SECOND))


def test_the_facts_of_a_kernel() -> None:
    problem = OP.problem(FIRST, SECOND)
    target = parse_target("llvm -mcpu=native")
    library, facts = llvm.compile_problem(problem, target)
    assert library.startswith(b"\x7fELF")
    assert set(facts) == {"problem", "schedule", "workspace_bytes", "requires", "build_seconds"}
    assert facts["problem"] == str(problem)
    kernel = OP.compile(FIRST, SECOND)
    assert (kernel.schedule, kernel.workspace_bytes) == (facts["schedule"], facts["workspace_bytes"])
    assert kernel.schedule in str(kernel)
    assert f"{kernel.workspace_bytes} bytes" in str(kernel)


def test_inspect_shows_the_program_of_the_kernel() -> None:
    from tvmconvgrad.compiler.inspection import inspect

    op = cg.ConvolutionBackpropData(
        strides=(1, 1), dilations=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), output_shape=(2, 7, 7, 32)
    )
    shapes, target = ((2, 7, 7, 16), (1, 1, 32, 16)), parse_target("llvm -mcpu=native")
    shown, kernel = inspect(op.problem(*shapes), target), op.compile(*shapes)
    assert (shown.schedule, shown.workspace_bytes) == (kernel.schedule, kernel.workspace_bytes)


def test_the_description_names_everything_that_the_code_depends_on() -> None:
    problem, target = OP.problem(FIRST, SECOND), parse_target("llvm -mcpu=native")
    base = description.describe(problem, target)
    others = [
        description.describe(OP.problem(FIRST, SECOND, dtype="bf16"), target),
        description.describe(OP.problem((2, 8, 4), (2, 8, 16)), target),
        description.describe(problem, parse_target("llvm")),
        description.describe(problem, target, "weights-o"),
    ]
    assert all(other != base for other in others)
    new = cg.ConvolutionBackwardWeights(
        strides=(1,), dilations=(1,), pads_begin=(1,), pads_end=(1,), weights_shape=(3, 4, 16)
    )
    assert description.describe(new.problem(FIRST, SECOND), target) == base
