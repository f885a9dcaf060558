"""AMX's tile registers are asked for; where the system gives none, other instructions take their place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tests.support.cpu.amx import AMX
from tvmconvgrad.deploy import cpu_checks
from tvmconvgrad.machines import host, targets
from tvmconvgrad.machines.targets import Target, parse_target

SAPPHIRE = frozenset({"avx512f", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"})


@pytest.mark.parametrize("granted", [True, False])
def test_native_has_tile_registers_where_the_system_gives_them(granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = ("+amx-bf16",) * granted
    monkeypatch.setattr(host, "may_use_tiles", lambda: granted)
    monkeypatch.setattr(host, "host_features", lambda: SAPPHIRE)
    monkeypatch.setattr(host, "named_generation", lambda: ("sapphirerapids", SAPPHIRE))
    monkeypatch.setattr(targets, "closest_generation", lambda: host.named_generation()[0])
    assert parse_target(None) == Target(mcpu="sapphirerapids", mattr=tiles)
    assert parse_target("llvm -mcpu=native -mattr=-amx-bf16").mattr == ("-amx-bf16",)
    monkeypatch.setattr(host, "named_generation", lambda: ("x86-64-v4", frozenset({"avx512f"})))
    assert parse_target(None).mattr == ("+avx512bf16", *tiles)


def test_nobody_asks_for_what_there_is_not_or_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "may_use_tiles", lambda: pytest.fail("the system was asked"))
    monkeypatch.setattr(host, "host_features", lambda: SAPPHIRE)
    monkeypatch.setattr(targets, "closest_generation", lambda: host.named_generation()[0])
    assert parse_target("llvm -mcpu=sapphirerapids") == Target(mcpu="sapphirerapids")
    assert host.missing_features({"avx512f", "avx2"}) == ["avx2"]
    monkeypatch.setattr(host, "host_features", lambda: frozenset({"avx512f", "avx512_bf16"}))
    monkeypatch.setattr(host, "named_generation", lambda: ("cooperlake", frozenset({"avx512f", "avx512_bf16"})))
    assert parse_target(None) == Target(mcpu="cooperlake")


@pytest.mark.parametrize("granted", [True, False])
def test_what_the_system_does_not_give_is_missing(granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "may_use_tiles", lambda: granted)
    monkeypatch.setattr(host, "host_features", lambda: SAPPHIRE)
    assert host.missing_features({"avx512f", "amx_tile"}) == ([] if granted else ["amx_tile"])


def test_a_kernel_is_refused_where_the_process_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "may_use_tiles", lambda: False)
    conv = Convolution(2, 1, 32, 32, (4, 14), (4, 14), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    call = replace(Case("ConvolutionBackpropData", conv, dtype="bf16").call, target=AMX)
    with pytest.raises(ValueError, match=r"needs .*amx_bf16, amx_tile.*, which this CPU does not have"):
        call.compile()


def test_bundles_ask_the_system() -> None:
    check = cpu_checks.check_in_c(parse_target("llvm"), {"amx_tile", "amx_bf16"}, "x86_64")
    assert check == "may_use_tiles() && has(0x7, 0, EDX, 22) && has(0x7, 0, EDX, 24)"
    assert "may_use_tiles" not in cpu_checks.check_in_c(parse_target("llvm"), {"avx512f"}, "x86_64")


@pytest.mark.skipif("amx_tile" not in host.host_features(), reason="this CPU has no AMX")
def test_the_system_is_asked_before_a_library_is_loaded() -> None:
    """Linux says which parts of the registers a process may use: arch_prctl(ARCH_GET_XCOMP_PERM)."""
    code = """
import ctypes
from tvmconvgrad.machines.tile_permission import may_use_tiles
def granted():
    bits = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(bits))
    return bits.value >> 18 & 1
print(granted(), may_use_tiles(), granted())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "1"]
