"""Questions to the CPU: a C program's answers are those of the operating system."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.bundles import STRICT, compiler, run
from tvmconvgrad.deploy import cpu_checks
from tvmconvgrad.machines.host import host_architecture, host_features
from tvmconvgrad.machines.targets import parse_target


@pytest.mark.skipif(host_architecture() != "x86_64", reason="cpuid is x86's")
def test_what_cpuid_says_is_what_the_system_says(tmp_path: Path) -> None:
    words = sorted(word for bits in cpu_checks._CPUID.values() for word in bits)
    target = parse_target("llvm")
    lines = [f'printf("%d ", {cpu_checks.check_in_c(target, [word], "x86_64")});' for word in words]
    code = "\n".join(['#include "cpu.c"', "#include <stdio.h>", "int main(void) {", *lines, "return 0; }"])
    (tmp_path / "ask.c").write_text(code)
    folder = Path(cpu_checks.__file__).parent
    run([compiler(), *STRICT, f"-I{folder}", tmp_path / "ask.c", "-o", tmp_path / "ask"])
    answers = dict(zip(words, run([tmp_path / "ask"]).split(), strict=True))
    assert {word for word, answer in answers.items() if answer == "1"} == set(words) & host_features()
    assert "1" in answers.values()


def test_all_features_must_be_there() -> None:
    check = cpu_checks.check_in_c(parse_target("llvm"), {"avx2", "pni"}, "x86_64")
    assert check == "keeps(AVX_STATE) && has(0x7, 0, EBX, 5) && has(0x1, 0, ECX, 0)"
    assert cpu_checks.check_in_c(parse_target("llvm"), {"avx512f"}, "x86_64").startswith("keeps(AVX512_STATE) && ")
    assert cpu_checks.check_in_c(parse_target("llvm"), set(), "x86_64") == "1"
    assert cpu_checks.check_in_c(parse_target("llvm"), {"asimd"}, "aarch64") == "(getauxval(AT_HWCAP) >> 1 & 1)"


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_what_cannot_be_asked_for(architecture: str) -> None:
    with pytest.raises(ValueError, match="needs apx, and a program has no way to ask"):
        cpu_checks.check_in_c(parse_target("llvm"), {"apx"}, architecture)


@pytest.mark.parametrize(
    ("mcpu", "architecture"),
    [
        (cpu, "x86_64")
        for cpu in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver5", "sapphirerapids", "alderlake")
    ]
    + [(cpu, "aarch64") for cpu in ("cortex-a53", "cortex-a76", "neoverse-n1", "neoverse-v2", "cortex-x4")],
)
def test_well_known_cpus_can_be_told_apart(mcpu: str, architecture: str) -> None:
    from tvmconvgrad.compiler.llvm import required_features

    target = parse_target(f"llvm -mcpu={mcpu} -mtriple={architecture}-linux-gnu")
    assert cpu_checks.check_in_c(target, required_features(target), architecture)
