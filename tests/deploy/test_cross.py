"""Bundles for AArch64, built and linked on another machine, checked by a C program under emulation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import LAYERS, check_program, run, write_examples
from tests.support.cpu.emulation import COMPILER, EMULATOR, needs_cross_compiler, needs_emulator, system_root
from tvmconvgrad.deploy import cpu_checks
from tvmconvgrad.machines.host import host_architecture

TARGETS = ("llvm -mcpu=cortex-a53", "llvm -mcpu=cortex-a76")
CHOSEN = [layer for layer in LAYERS if layer.name in ("dense 3x3", "pointwise", "up")]
pytestmark = pytest.mark.skipif(host_architecture() == "aarch64", reason="it is no other machine")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CXX", "CC"):  # which may name this machine's
            patch.delenv(variable, raising=False)
        folder = tmp_path_factory.mktemp("cross") / "arm"
        return cg.build(CHOSEN, folder, targets=TARGETS, name="arm", dtypes=("f32", "bf16"), static=True)


@needs_emulator
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76"])
def test_every_kernel_equals_the_reference(bundle: Path, cpu: str, static: bool, tmp_path: Path) -> None:
    gradients = {
        f"{layer.name.replace(' ', '_')}_{dtype}_{one.kind}": one
        for layer in CHOSEN
        for dtype in ("f32", "bf16")
        for one in layer.gradients(dtype=dtype)
    }
    write_examples(tmp_path, gradients)
    check_program(bundle, "arm", tmp_path / "check", cc=COMPILER, static=static)
    emulated = [EMULATOR, "-cpu", cpu, "-L", system_root(), tmp_path / "check"]
    for threads, callers in ((1, 1), (3, 2)):
        answer = run([*emulated, tmp_path, threads, callers])
        assert answer.startswith(f"{len(gradients)} kernels for llvm -mcpu={cpu} ")


@needs_cross_compiler
def test_it_is_refused_here(bundle: Path) -> None:
    with pytest.raises(cg.BundleError, match="it is for aarch64 with linux, and this machine is"):
        cg.load(bundle)


@needs_cross_compiler
@pytest.mark.parametrize(("prefix", "bits"), [("HWCAP", cpu_checks._HWCAP), ("HWCAP2", cpu_checks._HWCAP2)])
def test_the_systems_bits_of_features(prefix: str, bits: dict[str, int]) -> None:
    text = run([COMPILER, "-E", "-dM", "-include", "asm/hwcap.h", "-x", "c", "/dev/null"])
    system = dict(re.findall(rf"#define {prefix}_(\w+) \(1(?:UL)? << (\d+)\)", text))
    known = {name: str(bit) for name, bit in bits.items() if name.upper() in system}
    assert known == {name: system[name.upper()] for name in known}
    assert len(known) >= 3  # the newest ones are missing in older systems
