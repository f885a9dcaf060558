"""Machine files: what is in them, which a target takes, and that a plan follows from them and the target's text."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution
from tvmconvgrad.machines import cpus, files, gpus, host
from tvmconvgrad.machines.targets import Target, parse_target

_ONE, _NO = (1, 1), (0, 0)
WIDE = Case(
    "ConvolutionBackpropFilters", Convolution(8, 1, 256, 256, (14, 14), (14, 14), (3, 3), _ONE, _ONE, _ONE, _ONE)
)
NARROW = Case(
    "ConvolutionBackpropData", Convolution(8, 1, 1024, 512, (7, 7), (7, 7), _ONE, _ONE, _ONE, _NO, _NO), "NCX", "OIX"
)
NUMBERS = {
    cpus.FOLDER: {
        *("l1", "l1_ways", "l2", "l3", "l1_blocks", "l2_blocks"),
        *("fma_units", "fma_bits", "fma_latency", "dots_per_fma", "loads_per_cycle", "l2_bytes_per_cycle"),
        *("memory_cycles_per_byte", "followed_pages", "prefetch_positions"),
    },
    gpus.FOLDER: {
        *("sms", "clock_mhz", "shared", "shared_and_l1", "tensor_products", "shared_products", "f32_products"),
        *("l2_bytes_per_cycle", "bytes_per_us", "latency_us"),
    },
}
"""The numbers of each kind of file."""


def plan(target: Target, case: Case = WIDE) -> str:
    from tvmconvgrad.schedules.chosen import scheduled_as
    from tvmconvgrad.spec.reducing.merging import merged

    return str(scheduled_as(merged(case.call.problem()), target, None, None))


def l2(target: str) -> int:
    from tvmconvgrad.machines.cpu import CpuMachine

    return CpuMachine.of(parse_target(target)).l2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The CPUs' files in a folder of their own."""
    for path in cpus.FOLDER.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(cpus, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("of", [cpus.FOLDER, gpus.FOLDER], ids=["cpus", "gpus"])
def test_files_are_complete_and_every_number_has_a_source(of: Path) -> None:
    found = files.machine_files(of)
    assert set(found) == {path.stem for path in of.glob("*.json")}
    assert len(found) >= 3
    for file in found.values():
        assert set(file.numbers) == NUMBERS[of], file.name
        assert all(len(number.source.split()) >= 3 for number in file.numbers.values()), file.name
    names = files.names(of)
    assert len(names) == len(set(names)), "two files have a name"


def test_the_cpus_are_llvms() -> None:
    from tvmconvgrad.compiler import llvm
    from tvmconvgrad.machines.triples import linux_triple

    known = {name for architecture in ("x86_64", "aarch64") for name in llvm.cpus(linux_triple(architecture))}
    assert {name for file in files.machine_files(cpus.FOLDER).values() for name in file.names} <= known


@pytest.mark.parametrize(("cpu", "size"), [
    ("znver3", 512), ("znver4", 1024), ("znver5", 1024), ("cascadelake", 1024), ("sapphirerapids", 2048),
    ("neoverse-n1", 1024), ("neoverse-v1", 1024), ("cortex-a76", 512),
])  # fmt: skip
def test_the_caches_are_those_of_the_manuals(cpu: str, size: int) -> None:
    assert l2(f"llvm -mcpu={cpu}") == size << 10


@pytest.mark.parametrize(("target", "bits"), [
    ("llvm -mcpu=x86-64-v2", 128), ("llvm -mcpu=haswell", 256), ("llvm -mcpu=icelake-client", 512),
    ("llvm -mcpu=x86-64-v4 -mattr=+avx512bf16", 512), ("llvm -mcpu=cortex-a72", 128),
])  # fmt: skip
def test_a_cpu_without_a_file_takes_its_vectors(target: str, bits: int) -> None:
    from tvmconvgrad.machines.cpu import CpuMachine

    machine = CpuMachine.of(parse_target(target))
    values = dataclasses.asdict(machine)
    generic = files.machine_files(cpus.FOLDER)[f"generic-{bits}"]
    assert {name: values[name] for name in NUMBERS[cpus.FOLDER]} == generic.values
    assert machine.fmas == 2  # units as wide as the vectors


def test_units_narrower_than_vectors_take_them_in_parts() -> None:
    """Zen 4 has two units of 256 bits."""
    from tvmconvgrad.machines.cpu import CpuMachine

    assert CpuMachine.of(parse_target("llvm -mcpu=znver4")).fmas == 1
    assert CpuMachine.of(parse_target("llvm -mcpu=znver4 -mattr=-avx512f")).fmas == 2


def test_a_file_changes_the_plan_and_no_instruction(folder: Path) -> None:
    sizes = {"l1_blocks": 12 << 10, "l2_blocks": 128 << 10}
    numbers = {name: {"value": size, "source": "a toy"} for name, size in sizes.items()}
    toy = {"about": "a toy", "names": ["toy-cpu"], "like": "generic-512", "numbers": numbers}
    (folder / "toy.json").write_text(json.dumps(toy))
    by_file, by_name = (parse_target(f"llvm -mcpu=x86-64-v4 -mtune={name}") for name in ("toy", "toy-cpu"))
    assert by_file.to_dict() == parse_target("llvm -mcpu=x86-64-v4").to_dict()
    assert plan(by_file) == plan(by_name) != plan(parse_target("llvm -mcpu=x86-64-v4"))


def test_a_single_partition_may_be_as_large_as_l2_allows() -> None:
    """Blocks are as large as on CPUs with 512 KiB of L2, but data of all positions stays in 2 MiB."""
    small, large = (parse_target(f"llvm -mcpu=x86-64-v4 -mtune={name}") for name in ("generic-512", "sapphirerapids"))
    assert plan(small) == plan(large)
    assert "partition_tiles=56," in plan(large, NARROW)
    assert "partition_tiles=56," not in plan(small, NARROW)


def test_a_plan_follows_from_the_targets_text(monkeypatch: pytest.MonkeyPatch) -> None:
    target = parse_target("llvm -mcpu=x86-64-v4 -mtune=sapphirerapids")
    before = plan(target)
    from tvmconvgrad.schedules import cpu

    def asked(*_: object) -> None:
        raise AssertionError("the machine was asked")

    for name in ("host_cpu", "host_features", "named_generation", "closest_generation", "added_features"):
        monkeypatch.setattr(host, name, asked)
    cpu.cpu_rules.cache_clear()
    assert plan(parse_target(str(target))) == before


def test_native_is_planned_for_the_generation_that_is_most_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine on Sapphire Rapids that hides one of its instructions."""
    import archspec.cpu

    features = archspec.cpu.TARGETS["sapphirerapids"].features - {"waitpkg"}
    info = dataclasses.make_dataclass("Info", ["vendor"])("GenuineIntel")
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: info)
    monkeypatch.setattr(host, "named_generation", lambda: ("icelake-client", archspec.cpu.TARGETS["icelake"].features))
    monkeypatch.setattr(host, "host_features", lambda: features)
    monkeypatch.setattr(host, "may_use_tiles", lambda: True)
    host.closest_generation.cache_clear()
    try:
        assert host.closest_generation() == "sapphirerapids"
        assert str(parse_target(None)) == "llvm -mcpu=icelake-client -mattr=+avx512bf16,+amx-bf16 -mtune=sapphirerapids"
        assert parse_target("llvm -mcpu=native -mtune=znver4").mtune == "znver4"
        monkeypatch.setattr(host, "host_features", lambda: archspec.cpu.TARGETS["icelake"].features)
        host.closest_generation.cache_clear()
        assert parse_target(None) == Target(mcpu="icelake-client")
    finally:
        host.closest_generation.cache_clear()


def test_a_name_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mtune 'znver44' has no machine file.*znver4"):
        parse_target("llvm -mcpu=x86-64-v4 -mtune=znver44")


@pytest.mark.parametrize(("text", "why"), [
    ("{", "is not JSON"),
    ('{"about": "", "names": []}', "numbers"),
    ('{"about": "", "names": [], "numbers": {"l1": {"value": 1}}}', "source"),
    ('{"about": "", "names": [], "numbers": {"l1": {"value": "1", "source": ""}}}', "'1'"),
    ('{"about": "", "names": [], "numbers": {"l1": {"value": -1, "source": ""}}}', "-1"),
    ('{"about": "", "names": [], "like": "missing", "numbers": {}}', "missing"),
])  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(ValueError, match=f"machine file broken.json .*{why}"):
        files.machine_files(tmp_path)


def test_what_calibrate_writes_can_be_read(folder: Path) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "calibrate.py"
    spec = importlib.util.spec_from_file_location("calibrate", path)
    assert spec is not None
    assert spec.loader is not None
    calibrate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(calibrate)
    sizes = {"l1": 64 << 10, "l1_ways": 4, "l2": 3 << 20, "l3": 5 << 20}
    measured = {"fma_units": 3.97, "fma_latency": 4.03, "l2_bytes_per_cycle": 30.04, "memory_bytes_per_cycle": 4.0}
    (folder / "mine.json").write_text(calibrate.machine_file("mine", 4, sizes, measured))
    found = files.machine_files(folder)["mine"]
    costs = {"fma_units": 4, "fma_latency": 4, "l2_bytes_per_cycle": 30.0, "memory_cycles_per_byte": 0.25}
    assert found.values == files.machine_files(folder)["generic-128"].values | sizes | costs
    assert "calibrate.py mine" in found.numbers["fma_units"].source
