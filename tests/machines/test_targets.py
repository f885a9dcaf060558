"""Targets: spellings, what "native" is, and the words for what there is not."""

from __future__ import annotations

import platform
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmconvgrad.machines import host, targets
from tvmconvgrad.machines.host import host_cpu, host_features
from tvmconvgrad.machines.targets import Target, check_host, parse_target
from tvmconvgrad.nvidia import driver


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("llvm", Target()),
        ("llvm -mcpu=znver3", Target(mcpu="znver3")),
        ("  llvm   -mcpu=znver3 ", Target(mcpu="znver3")),
        ("llvm -mcpu=x86-64-v3 -mattr=+avx512f,-fma", Target(mcpu="x86-64-v3", mattr=("+avx512f", "-fma"))),
        ("llvm -mtriple=aarch64-linux-gnu", Target(mtriple="aarch64-linux-gnu")),
        ("llvm -algorithm=auto -mcpu=znver3", Target(mcpu="znver3", algorithm="auto")),
        ("llvm -mcpu=znver3 -algorithm=direct", Target(mcpu="znver3")),
        ("cuda -arch=sm_90", Target("cuda", arch="sm_90")),
        ("cuda -arch=sm_100a", Target("cuda", arch="sm_100a")),
        ("cuda -fpmath_mode=tf32 -arch=sm_80", Target("cuda", arch="sm_80", fpmath_mode="tf32")),
        ("cuda -arch=sm_80 -fpmath_mode=strict", Target("cuda", arch="sm_80")),
    ],
)
def test_strings_and_dicts(text: str, target: Target) -> None:
    assert parse_target(text) == target
    assert parse_target(target) is target
    assert parse_target(str(target)) == target
    name = "fpmath_mode" if target.kind == "cuda" else "algorithm"
    allowed = {name: getattr(target, name)}
    assert parse_target({**target.to_dict(), **allowed}) == target
    joined = {"mattr": ",".join(target.mattr)} if target.mattr else {}
    assert parse_target({**target.to_dict(), **allowed, **joined}) == target


def test_native_is_this_cpu() -> None:
    assert parse_target(None) == parse_target("llvm -mcpu=native") == parse_target({"kind": "llvm", "mcpu": "native"})
    assert parse_target(None).mcpu == host_cpu() != "native"
    assert str(parse_target(None)).startswith(f"llvm -mcpu={host_cpu()}")


def test_native_has_the_features_that_its_name_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine may hide one instruction of its CPU, which is named by an older generation then."""
    level = ("x86-64-v4", frozenset({"avx512f"}))
    monkeypatch.setattr(targets, "closest_generation", lambda: host.named_generation()[0])
    monkeypatch.setattr(host, "named_generation", lambda: level)
    monkeypatch.setattr(host, "host_features", lambda: frozenset({"avx512f", "avx512_bf16"}))
    assert parse_target(None) == Target(mcpu="x86-64-v4", mattr=("+avx512bf16",))
    without = parse_target("llvm -mcpu=native -mattr=-avx512bf16,+sse2")
    assert without.mattr == ("-avx512bf16", "+sse2")
    monkeypatch.setattr(host, "named_generation", lambda: ("znver5", frozenset({"avx512_bf16"})))
    assert parse_target(None) == Target(mcpu="znver5")
    monkeypatch.setattr(host, "named_generation", lambda: ("neoverse-n1", frozenset({"asimd"})))
    monkeypatch.setattr(host, "host_features", lambda: frozenset({"asimd", "bf16"}))
    assert parse_target(None) == Target(mcpu="neoverse-n1", mattr=("+bf16",))


@pytest.mark.parametrize(
    ("machine", "mcpu", "triple"),
    [
        ("x86_64", "cortex-a76", "aarch64-linux-gnu"),
        ("AMD64", "neoverse-n1", "aarch64-linux-gnu"),
        ("aarch64", "neoverse-n1", None),
        ("arm64", "cortex-a76", None),
        ("aarch64", "x86-64-v3", "x86_64-linux-gnu"),
        ("arm64", "znver3", "x86_64-linux-gnu"),
        ("aarch64", "skylake-avx512", "x86_64-linux-gnu"),
        ("x86_64", "x86-64-v4", None),
        ("x86_64", "generic", None),
        ("aarch64", "generic", None),
    ],
)
def test_a_name_that_implies_the_architecture(
    machine: str, mcpu: str, triple: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    target = parse_target(f"llvm -mcpu={mcpu}")
    assert target == parse_target({"kind": "llvm", "mcpu": mcpu}) == Target(mcpu=mcpu, mtriple=triple)
    assert parse_target(str(target)) == target
    given = f"llvm -mcpu={mcpu} -mtriple=aarch64-unknown-linux-musl"
    assert parse_target(given).mtriple == "aarch64-unknown-linux-musl"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64's CPUs")
def test_the_features_of_this_cpu_are_those_that_the_system_reports() -> None:
    with open("/proc/cpuinfo") as file:
        flags = next(line for line in file if line.startswith("flags")).partition(":")[2].split()
    assert host_features() >= set(flags)
    assert {"sse2", "fxsr"} <= host_features()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "is empty"),
        ("rocm", "kind 'rocm' in 'rocm' is not supported, expected llvm or cuda"),
        ("cuda -mcpu=znver3", "option 'mcpu' in 'cuda -mcpu=znver3' is unknown, expected one of arch, fpmath_mode"),
        ("llvm -arch=sm_90", "option 'arch'"),
        ("llvm -algorithm=winograd", "algorithm is 'winograd', expected direct or auto"),
        ("cuda -arch=sm_90 -algorithm=auto", "option 'algorithm'"),
        ("cuda -arch=sm_90 -fpmath_mode=bf16", "fpmath_mode is 'bf16', expected strict or tf32"),
        ("llvm -fpmath_mode=tf32", "option 'fpmath_mode'"),
        ("cuda -arch=90", "arch is '90', expected NVIDIA's name of an architecture such as sm_90"),
        ({"kind": "cuda", "arch": "sm_9"}, "arch is 'sm_9'"),
        ("nonsense -mcpu=znver3", "kind 'nonsense'"),
        ("llvm znver3", "'znver3'"),
        ("llvm -mcpu", "'-mcpu'"),
        ("llvm --mcpu=znver3", "'--mcpu=znver3'"),
        ("llvm -mcpu=znver3 -mcpu=znver4", "-mcpu is given twice"),
        ("llvm -num-cores=4", "'-num-cores=4'"),
        ("llvm -cores=4", "option 'cores'"),
        ("llvm -mattr=avx2", "feature 'avx2'"),
        ("llvm -mattr=+avx2,", "feature ''"),
        ("llvm -mcpu='", "cannot be read"),
        ("llvm -mtriple=nonsense", "unknown architecture, expected one that begins with aarch64 or x86_64"),
        ("llvm -mtriple=riscv64-linux-gnu", "unknown architecture"),
        ("llvm -mtriple=x86_64-pc-linux-coff", "mtriple 'x86_64-pc-linux-coff' names a format of files, 'coff'"),
        ("llvm -mtriple=x86_64-linux-gnuwasm", "names a format of files, 'gnuwasm', expected none"),
        ("llvm -mtriple=aarch64-windows-macho", "names a format of files"),
        ("llvm -mtriple=x86_64-windows-musl", "has an environment that Windows has not, expected one of msvc"),
        ("llvm -mtriple=aarch64-pc-win32-eabi", "has an environment that Windows has not"),
        ({"kind": "llvm", "mcpu": ""}, "mcpu is ''"),
        ({"kind": "llvm", "mcpu": "zn ver3"}, "mcpu is 'zn ver3'"),
        ({"kind": "llvm", "mcpu": "znver3\0"}, "mcpu is"),
        ({"kind": "llvm", "mattr": ["+avx2", 3]}, "feature 3"),
        ({"kind": "llvm", 3: 4}, "option 3"),
        ({"kind": ["llvm"]}, "kind ['llvm']"),
    ],
)
def test_targets_that_there_are_not(target: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^target: ") as error:
        parse_target(target)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", ["cuda", "cuda -arch=native", {"kind": "cuda"}])
def test_a_gpu_that_is_not_named_and_not_there(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise driver.MissingGpu("this machine has no NVIDIA GPU")

    monkeypatch.setattr(driver, "driver", missing)
    with pytest.raises(ValueError, match=r"^target: .* names no GPU's architecture, and this machine has no") as error:
        parse_target(target)
    assert 'expected for example "cuda -arch=sm_90"' in str(error.value)


@pytest.mark.parametrize(
    "target", [3, b"llvm", ["llvm"], object(), {"kind": "llvm", "mcpu": 3}, {"mattr": {"+avx2"}}, {"mtriple": b"arm64"}]
)
def test_what_is_no_target(target: Any) -> None:
    with pytest.raises(TypeError, match=r"^target: "):
        parse_target(target)


def test_a_dict_is_not_changed() -> None:
    given = {"kind": "llvm", "mcpu": "native", "mattr": ["+sse2"]}
    parse_target(given)
    assert given == {"kind": "llvm", "mcpu": "native", "mattr": ["+sse2"]}


@pytest.mark.parametrize(
    ("machine", "system", "triple", "runs"),
    [
        ("x86_64", "Linux", None, True),
        ("x86_64", "Linux", "x86_64-linux-gnu", True),
        ("x86_64", "Linux", "x86_64", True),
        ("AMD64", "Linux", "amd64-unknown-linux-musl", True),
        ("aarch64", "Linux", "aarch64-linux-gnu", True),
        ("arm64", "Darwin", "aarch64-apple-darwin", True),
        ("x86_64", "Linux", "aarch64-linux-gnu", False),
        ("aarch64", "Linux", "x86_64-linux-gnu", False),
        ("x86_64", "Linux", "x86_64-apple-macos", False),
        ("x86_64", "Linux", "x86_64-pc-windows-msvc", False),
        ("riscv64", "Linux", "x86_64-linux-gnu", False),
    ],
)
def test_where_code_runs(
    machine: str, system: str, triple: str | None, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: system)
    target = Target(mtriple=triple)
    if runs:
        check_host(target)
    else:
        with pytest.raises(ValueError, match=r"^target: .* not run$"):
            check_host(target)


words = st.sampled_from(
    ["llvm", "-mcpu=znver3", "-mcpu=cortex-a76", "-mcpu=", "-mattr=+a", "-", "=", "'", '"', "\\", "-mtriple=arm64", "#"]
)
HUGE = 1 << 20_000
"""Python makes no text of it."""
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.binary(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
dicts = st.dictionaries(st.sampled_from(["kind", "mcpu", "mattr", "mtriple", "host"]), values | st.just("llvm"))


@settings(max_examples=300, deadline=None)
@given(st.lists(words, max_size=5).map(" ".join) | st.text(max_size=20) | values | dicts)
def test_nonsense_is_an_error_in_one_line(target: Any) -> None:
    try:
        found = parse_target(target)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("target: ")
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 2000
    else:
        assert parse_target(str(found)) == found


@pytest.mark.parametrize("target", [{"kind": HUGE}, {"kind": "llvm", HUGE: 1}, {"kind": "llvm", "mcpu": HUGE}])
def test_what_python_makes_no_text_of(target: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^target: .*<int of 20001 bits>"):
        parse_target(target)
