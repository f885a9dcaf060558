"""tvmconvgrad cache and info, on a cache of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad
from tvmconvgrad.cache.store import KernelCache

AT_MOST = "(at most 2.0 GiB, by TVMCONVGRAD_CACHE_MAXSIZE)"
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
    assert invoke("cache", "size").stdout == f"{bytes_ / 1024:.1f} KiB in {folder} {AT_MOST}\n"


@pytest.mark.filterwarnings("ignore::tvmconvgrad.CacheWarning")
def test_clear_asks_first(folder: Path, invoke: Any) -> None:
    refused = invoke("cache", "clear", input="n\n")
    assert refused.exit_code == 1
    bytes_ = sum(path.stat().st_size for path in folder.glob("*.kernel"))
    assert f"Remove 2 kernels ({bytes_ / 1024:.1f} KiB) from {folder}?" in refused.stdout
    assert len(list(folder.glob("*.kernel"))) == 2

    cleared = invoke("cache", "clear", "--yes")
    assert cleared.exit_code == 0
    bytes_ += len(b"nonsense")  # what was set aside goes, too
    assert cleared.stdout == f"removed 2 kernels ({bytes_ / 1024:.1f} KiB) from {folder}\n"
    assert not list(folder.glob("*.kernel"))


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cache with kernels of two operators for two targets; that of the first pair is two days old."""
    path = tmp_path / "cache"
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(path))
    for operator in ("ConvolutionBackpropData", "ConvolutionBackpropFilters"):
        for target in ("llvm -mcpu=haswell", "llvm -mcpu=znver3"):
            facts = {"problem": f"{operator} f32: 1x1", "schedule": "rule(a=1)", "requires": []}
            KernelCache().store({"target": target, "operator": operator}, b"x" * 2048, facts)
    for entry in KernelCache().entries():
        if entry.description == {"target": "llvm -mcpu=haswell", "operator": "ConvolutionBackpropData"}:
            os.utime(path / f"{entry.key}.kernel", (time.time() - 2 * 86400 - 60,) * 2)
    return path


@pytest.mark.parametrize(
    ("options", "gone"),
    [
        (["--operator", "ConvolutionBackpropData"], ["Data haswell", "Data znver3"]),
        (["--operator", "ConvolutionBackwardWeights"], ["Filters haswell", "Filters znver3"]),
        (["--operator", "ConvTransposeBackpropData"], []),
        (["--target", "llvm -mcpu=znver3"], ["Data znver3", "Filters znver3"]),
        (["--older-than", "2d"], ["Data haswell"]),
        (["--older-than", "48h", "--target", "llvm -mcpu=znver3"], []),
        (["--older-than", "1w"], []),
        (["--older-than", "0m", "--operator", "ConvolutionBackpropData"], ["Data haswell", "Data znver3"]),
    ],
)
def test_clear_some(kinds: Path, invoke: Any, options: list[str], gone: list[str]) -> None:
    def left() -> list[str]:
        names = (entry.description for entry in KernelCache().entries())
        return sorted(f"{one['operator'][19:]} {one['target'][11:]}" for one in names)

    files = {path: path.stat().st_size for path in kinds.glob("*.kernel")}
    before = left()
    dry = invoke("cache", "clear", "--dry-run", *options)
    assert left() == before
    done = invoke("cache", "clear", "--yes", *options)
    assert left() == sorted(set(before) - set(gone))
    bytes_ = sum(size for path, size in files.items() if not path.exists())
    number = f"{len(gone)} kernel{'s' * (len(gone) != 1)}"
    size = f"{bytes_ / 1024:.1f} KiB" if bytes_ else "0 bytes"
    assert done.stdout == f"removed {number} ({size}) from {kinds}\n"
    assert dry.stdout.endswith(f"would remove {number} ({size}) from {kinds}\n")
    assert dry.stdout.count("rule(a=1)") == len(gone)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--older-than", "30"], "'30' is no age, expected a number and m, h, d or w, such as 30d"),
        (["--operator", "ConvolutionBackpropDat"], "did you mean 'ConvolutionBackpropData'"),
        (["--target", "nonsense"], "nonsense"),
    ],
)
def test_clear_refuses_nonsense(kinds: Path, invoke: Any, options: list[str], said: str) -> None:
    result = invoke("cache", "clear", "--yes", *options)
    assert result.exit_code != 0
    assert said in " ".join(result.output.replace("│", " ").split())
    assert len(list(kinds.glob("*.kernel"))) == 4


def test_an_empty_cache(tmp_path: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(tmp_path / "none"))
    assert invoke("cache", "list").stdout == f"0 kernels in {tmp_path / 'none'}\n"
    assert invoke("cache", "size").stdout == f"0 bytes in {tmp_path / 'none'} {AT_MOST}\n"
    assert invoke("cache", "clear", "--yes").stdout == f"removed 0 kernels (0 bytes) from {tmp_path / 'none'}\n"
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
