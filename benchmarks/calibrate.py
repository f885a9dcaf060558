"""Measure this machine's CPU, and write its machine file (docs/targets.md).

    python benchmarks/calibrate.py my-server                  # tvmconvgrad/machines/cpus/my-server.json
    python benchmarks/calibrate.py my-server -o my-server.json

Sizes of caches are what the system tells (`lscpu -C` shows the same). Costs are measured by calibrate.c on one core;
nothing else should run. Then `-mtune=my-server` plans kernels for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from tvmconvgrad.bench.cpus import cpu_name
from tvmconvgrad.compiler.c_tools import find_compiler, words
from tvmconvgrad.machines import cpus
from tvmconvgrad.machines.cpu import F32_BYTES, CpuMachine, generic
from tvmconvgrad.machines.host import host_architecture
from tvmconvgrad.machines.targets import parse_target

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
NEAR, FAR, MOST = 0.5, 8, 1 << 30
"""The buffers whose reads are measured: a share of L1 and of L2, and a multiple of a core's share of L3 beside 256 MiB,
of so many bytes at most."""


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the file's name, and what -mtune= takes")
    parser.add_argument("-o", "--output", type=Path, help="where to write it instead")
    given = parser.parse_args()
    lanes = CpuMachine.of(parse_target()).lanes
    sizes = cache_sizes()
    measured = run(lanes, sizes)
    file = machine_file(given.name, lanes, sizes, measured)
    output = given.output or cpus.FOLDER / f"{given.name}.json"
    output.write_text(file)
    print(f"{output}:\n{file}", end="")


def cache_sizes() -> dict[str, int]:
    """Bytes of L1 and L2, the ways of L1, and a core's share of the last-level cache, as the system tells them.

    ValueError where it does not.
    """
    found = {}
    for folder in CACHES.glob("index*"):
        if _read(folder, "type") != "Instruction":
            found[int(_read(folder, "level"))] = folder
    if 2 not in found:
        raise ValueError(f"{CACHES} does not tell the sizes of L1 and L2; give them by hand")
    size = {level: int(_read(folder, "size").removesuffix("K")) << 10 for level, folder in found.items()}
    threads = _threads(found[1])
    cores = max(_threads(found[3]) // threads, 1) if 3 in found else 1
    return {
        "l1": size[1],
        "l1_ways": int(_read(found[1], "ways_of_associativity")),
        "l2": size[2] // max(_threads(found[2]) // threads, 1),
        "l3": size.get(3, size[2]) // cores,
    }


def _read(folder: Path, name: str) -> str:
    return (folder / name).read_text().strip()


def _threads(folder: Path) -> int:
    """How many hardware threads share a cache."""
    return sum(bin(int(word, 16)).count("1") for word in _read(folder, "shared_cpu_map").split(","))


def run(lanes: int, sizes: dict[str, int]) -> dict[str, float]:
    """What calibrate.c measures with vectors of so many f32."""
    compiler = find_compiler(host_architecture())
    if compiler is None:
        raise ValueError("there is no C compiler: install gcc or clang")
    source, native = Path(__file__).with_suffix(".c"), "march" if host_architecture() == "x86_64" else "mcpu"
    buffers = [int(NEAR * sizes["l1"]), int(NEAR * sizes["l2"]), min(FAR * sizes["l3"] + (256 << 20), MOST)]
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
        program = str(Path(folder, "calibrate"))
        options = ["-x", "c", "-std=gnu11", "-O2", "-ffp-contract=fast", f"-{native}=native", f"-DLANES={lanes}"]
        subprocess.run([*words(compiler), *options, str(source), "-o", program], check=True)
        pinned = ["taskset", "-c", "0"] if shutil.which("taskset") else []
        done = subprocess.run([*pinned, program, *map(str, buffers)], capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}


def machine_file(name: str, lanes: int, sizes: dict[str, int], measured: dict[str, float]) -> str:
    """The file's text, a number a line."""
    told = f"{CACHES}/index*, {cpu_name()}"
    timed = f"python benchmarks/calibrate.py {name}, {cpu_name()}"
    numbers: dict[str, tuple[float, str]] = {key: (value, told) for key, value in sizes.items()}
    numbers["fma_units"] = max(round(measured["fma_units"]), 1), timed
    numbers["fma_bits"] = 8 * F32_BYTES * lanes, timed
    numbers["fma_latency"] = max(round(measured["fma_latency"]), 1), timed
    if "dots_per_fma" in measured:
        numbers["dots_per_fma"] = measured["dots_per_fma"], timed
    numbers["l2_bytes_per_cycle"] = round(measured["l2_bytes_per_cycle"], 1), timed
    numbers["memory_cycles_per_byte"] = round(1 / measured["memory_bytes_per_cycle"], 3), timed
    lines = [
        f'    "{key}": {json.dumps({"value": value, "source": source})}' for key, (value, source) in numbers.items()
    ]
    head = {"about": cpu_name(), "names": [], "like": generic(lanes)}
    beginning = json.dumps(head, indent=2).removesuffix("\n}")
    return f'{beginning},\n  "numbers": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    main()
