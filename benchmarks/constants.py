"""What a constant of the cost models is worth: our kernels with another value of it, beside those with its own.

    python benchmarks/constants.py schedules/cpu/costs.py:PACKING machines/cpus/zen4.json:memory_cycles_per_byte

A constant is a name in a file of the package, or a number of a machine. For each factor (`--times 0.5 2`) a copy of the
package is made in which it is so many times as large; integers stay integers. Every layer of the suites then has one
sum scheduled by both: weights gradient, data gradient and forward in turn, in NXC and NCX in turn. Of those whose
programs differ at most `--most` are timed, spread over the suites, by workers that take turns. A number above 1 means
that they take longer than with today's value.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
from tvm_ffi.structural import structural_hash

import tvmconvgrad
from tvmconvgrad import schedules
from tvmconvgrad.bench.cpus import choose_cpus
from tvmconvgrad.bench.job import Job
from tvmconvgrad.bench.tensors import check_ours, make_inputs
from tvmconvgrad.bench.variants import ours, ours_too
from tvmconvgrad.bench.workers.session import Session
from tvmconvgrad.layers import KINDS, LayerGradient
from tvmconvgrad.layers.selection import select_gradients
from tvmconvgrad.machines.cpu import CpuMachine
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.reducing import reduced

PACKAGE = Path(tvmconvgrad.__file__).parent


@dataclass(frozen=True)
class Constant:
    """A number, or several in a tuple, by file and name."""

    path: Path
    """Within the package."""
    name: str

    def multiply(self, package: Path, factor: float, target: str) -> None:
        """Make it `factor` times as large in a copy of the package. Raises ValueError if it is not there."""
        file = package / self.path
        text = file.read_text()
        changed = self._in_machine(text, factor, target) if file.suffix == ".json" else self._in_code(text, factor)
        file.write_text(changed)

    def _in_machine(self, text: str, factor: float, target: str) -> str:
        machine = json.loads(text)
        own = CpuMachine.of(replace(parse_target(target), mtune=self.path.stem))
        value = _multiplied(getattr(own, self.name), factor)
        machine["numbers"][self.name] = {"value": value, "source": "benchmarks/constants.py"}
        return json.dumps(machine)

    def _in_code(self, text: str, factor: float) -> str:
        for statement in ast.parse(text).body:
            if isinstance(statement, ast.Assign):
                for name, value in _assigned(statement):
                    if name == self.name:
                        return _replaced(text, value, repr(_multiplied(self._value(), factor)))
        raise ValueError(f"{self.path} has no constant {self.name}")

    def _value(self) -> object:
        module = importlib.import_module(".".join([PACKAGE.name, *self.path.with_suffix("").parts]))
        return getattr(module, self.name)


def _multiplied(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(_multiplied(each, factor) for each in value)
    if isinstance(value, int):
        return max(round(value * factor), 1)
    assert isinstance(value, float)
    return value * factor


def _assigned(statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement assigns, each with its value."""
    (target,) = statement.targets
    if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
        yield from ((ast.unparse(name), value) for name, value in zip(target.elts, statement.value.elts))
    else:
        yield ast.unparse(target), statement.value


def _replaced(text: str, node: ast.expr, new: str) -> str:
    lines = text.splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    return text[:begin] + new + text[end:]


def main() -> None:
    """Print a line for each constant and factor, and write all numbers to `--json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("constants", nargs="*", metavar="FILE:NAME")
    parser.add_argument("--times", type=float, nargs="+", default=[0.5, 2.0], metavar="FACTOR")
    parser.add_argument("--target", default="llvm -mcpu=native")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--programs", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.programs:
        print(json.dumps(programs(given.target, given.dtype)))
        return
    measured = []
    own = _programs_of(PACKAGE.parent, given)
    for text in given.constants:
        path, _, name = text.partition(":")
        for factor in given.times:
            with changed_copy(Constant(Path(path), name), factor, given.target) as checkout:
                other = _programs_of(checkout, given)
                different = [number for number, pair in enumerate(zip(own, other)) if pair[0] != pair[1]]
                ratios = timed(checkout, _spread(different, given.most), given)
            found = {"changed": len(different), "of": len(own), "ratios": ratios}
            measured.append({"constant": text, "factor": factor, **found})
            print(_line(measured[-1]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(measured, indent=1) + "\n")


def chosen_sums(dtype: str) -> list[tuple[str, LayerGradient]]:
    """One sum of every layer, in the order of the suites."""
    found = []
    for kind, only in enumerate(KINDS):
        for layout, data_format in enumerate(DATA_FORMATS):
            selection = select_gradients(["all"], dtypes=[dtype], data_format=data_format, only=only)
            found += [(number, *sum_) for number, sum_ in enumerate(selection) if number % 6 == 2 * kind + layout]
    return [(f"{suite}/{sum_.layer.name}", sum_) for _, suite, sum_ in sorted(found, key=lambda each: each[0])]


def programs(target: str, dtype: str) -> list[str]:
    """A hash of each sum's program; the reason where there is none."""
    parsed, found = parse_target(target), []
    for _, sum_ in chosen_sums(dtype):
        try:
            found.append(str(structural_hash(schedules.schedule(reduced(sum_.problem), parsed).module)))
        except ValueError as reason:
            found.append(str(reason))
    return found


def _programs_of(checkout: Path, given: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, "--programs", "--target", given.target, "--dtype", given.dtype]
    output = subprocess.check_output(command, env={**os.environ, "PYTHONPATH": str(checkout)}, text=True)
    found: list[str] = json.loads(output)
    return found


@contextmanager
def changed_copy(constant: Constant, factor: float, target: str) -> Iterator[Path]:
    """A folder with a copy of the package in which a constant is `factor` times as large."""
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-constants-") as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        constant.multiply(copy, factor, target)
        yield Path(folder)


def _spread(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many of the numbers, at equal distances."""
    count = min(most, len(numbers))
    return [numbers[place * len(numbers) // count] for place in range(count)]


def timed(checkout: Path, numbers: Sequence[int], given: argparse.Namespace) -> dict[str, float]:
    """The time of a checkout's kernels divided by that of ours, the median over the rounds, by layer and kind."""
    if not numbers:
        return {}
    base, sums, ratios = ours(given.target), chosen_sums(given.dtype), {}
    other = ours_too(f"untuned,checkout={checkout}", base)
    with Session([ours_too("untuned", base), other], choose_cpus(1)) as session:
        for name, sum_ in (sums[number] for number in numbers):
            job = Job.of(sum_.problem)
            prepared = session.prepare(job, make_inputs(sum_.problem, job, seed=0))
            mine, others = prepared.ready.values()
            by_tiles = any(str(found.facts["schedule"]).startswith("winograd") for found in (mine, others))
            check_ours(name, others.result, np.rint(mine.result), given.dtype, by_tiles)
            times = session.time(prepared, given.rounds).values()
            key = f"{name} {sum_.kind} {sum_.problem.data_format}"
            ratios[key] = round(median(b / a for a, b in zip(*times)), 3)
    return ratios


def _line(found: dict[str, object]) -> str:
    ratios = found["ratios"]
    assert isinstance(ratios, dict)
    told = f"{found['constant']} times {found['factor']}: {found['changed']} of {found['of']} programs change"
    if not ratios:
        return told
    least, greatest = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    extremes = f"{ratios[least]:.2f} ({least}) to {ratios[greatest]:.2f} ({greatest})"
    return f"{told}; {len(ratios)} timed: times {geometric_mean(ratios.values()):.3f} in the mean, {extremes}"


if __name__ == "__main__":
    main()
