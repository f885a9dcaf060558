"""tvmconvgrad cache and info, on a cache of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad
from tvmconvgrad.compiling.cache import KernelCache

PROBLEM = "ConvolutionBackpropData f32: output_delta NXC 1x3x3x4"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache with two kernels, and a damaged one."""
    path = tmp_path / "cache"
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(path))
    for name in ("one", "two"):
        facts = {"problem": f"{PROBLEM} {name}", "schedule": f"rule({name}=1)", "requires": []}
        KernelCache().store({"target": "llvm -mcpu=haswell", "name": name}, b"x" * 2048, facts)
    (path / f"{'0' * 64}.kernel").write_bytes(b"nonsense")
    return path


@pytest.mark.filterwarnings("ignore::tvmconvgrad.CacheWarning")
def test_list(folder: Path, invoke: Any) -> None:
    result = invoke("cache", "list")
    assert result.exit_code == 0
    assert result.stdout.count("llvm -mcpu=haswell") == 2
    assert result.stdout.count("2.0 KiB") == 2
    for name in ("one", "two"):
        assert f"  {PROBLEM} {name}\n  rule({name}=1)\n" in result.stdout
    assert result.stdout.endswith(f"2 kernels in {folder}\n")


def test_size(folder: Path, invoke: Any) -> None:
    bytes_ = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert invoke("cache", "size").stdout == f"{bytes_ / 1024:.1f} KiB in {folder}\n"


@pytest.mark.filterwarnings("ignore::tvmconvgrad.CacheWarning")
def test_clear_asks_first(folder: Path, invoke: Any) -> None:
    refused = invoke("cache", "clear", input="n\n")
    assert refused.exit_code == 1
    assert f"Remove 2 kernels from {folder}?" in refused.stdout
    assert len(list(folder.glob("*.kernel"))) == 2

    cleared = invoke("cache", "clear", "--yes")
    assert cleared.exit_code == 0
    assert cleared.stdout == f"removed 2 kernels from {folder}\n"
    assert not list(folder.glob("*.kernel"))


def test_an_empty_cache(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "none"))
    assert invoke("cache", "list").stdout == f"0 kernels in {tmp_path / 'none'}\n"
    assert invoke("cache", "size").stdout == f"0 bytes in {tmp_path / 'none'}\n"
    assert invoke("cache", "clear", "--yes").stdout == f"removed 0 kernels from {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.filterwarnings("ignore::tvmconvgrad.CacheWarning")
def test_info(folder: Path, invoke: Any) -> None:
    result = invoke("info")
    assert result.exit_code == 0
    facts = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert facts["tvmconvgrad"] == tvmconvgrad.__version__
    assert facts["apache-tvm"] == version("apache-tvm")
    assert facts["Python"].startswith(sys.version.split()[0])
    assert facts["target"].startswith("llvm -mcpu=")
    assert int(facts["threads"]) == tvmconvgrad.get_num_threads()
    assert facts["cache"].startswith(f"{folder} (2 kernels, ")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_info_tells_what_the_cpu_can_do(invoke: Any) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith(("flags", "Features")))
    shown = dict(line.split(maxsplit=1) for line in invoke("info").stdout.splitlines())["features"]
    assert set(shown.split()) <= set(flags.split(":")[1].split()) | {"sse3", "3dnow", "avx512"}


def test_bad_number_of_threads(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_NUM_THREADS", "many")
    assert re.match(r"TVMCONVGRAD_NUM_THREADS: .*'many'", fails("info"))


def test_unknown_commands(fails: Any) -> None:
    assert "No such command 'frob'" in fails("frob")
    assert "No such command 'frob'" in fails("cache", "frob")


@pytest.mark.parametrize("words", [["cache", "list"], ["cache", "size"], ["info"]])
def test_a_folder_whose_name_is_no_text(words: list[str], tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    paths = os.pathsep.join(path or "." for path in sys.path)
    variables = {"PYTHONPATH": paths, "TVMCONVGRAD_CACHE_DIR": folder, "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, "-m", "tvmconvgrad", *words]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/caf\\udce9" in done.stdout


def test_info_where_no_folder_can_be_known(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", "~nobody-of-this-name/kernels")
    result = invoke("info")
    assert result.exit_code == 0
    assert re.search(r"^cache +none: TVMCONVGRAD_CACHE_DIR: '~nobody-of-this-name/kernels' ", result.stdout, re.M)
    assert invoke("cache", "list").exit_code == 2
