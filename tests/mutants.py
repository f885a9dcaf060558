"""Which tests see faults in schedules: python -m tests.mutants

Each line of mutants.jsonl changes one text of one file of the package, says what that breaks, and names the files of
tests that most likely see it. They run in a copy of the project, the quick lane first, then the second and the nightly
one, each until a test fails, which must pass with nothing changed. The exit status is 1 where both of CI's lanes let a
fault pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.oracles.data import data_folder

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = Path(__file__).with_suffix(".jsonl")
LANES = {"quick": "not slow and not nightly", "second": "slow", "nightly": "nightly"}
NO_TESTS = 5
"""pytest's exit status where a lane has none of the files' tests."""


@dataclass(frozen=True)
class Mutant:
    """One fault: `old` stands in the file once, and `new` takes its place."""

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, line: str) -> Mutant:
        fields = json.loads(line)
        return cls(**{**fields, "tests": tuple(fields["tests"])})

    def changed(self, source: str) -> str:
        """The file's text with the fault. ValueError where the old text is not there once."""
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {source.count(self.old)} times, expected once")
        return source.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    """All that the file describes."""
    return [Mutant.read(line) for line in MUTANTS.read_text(encoding="utf-8").splitlines()]


def caught_by(project: Path, tests: Sequence[str], lane: str, workers: int) -> str | None:
    """The first test of a lane that fails in a copy of the project; None where all pass or there are none."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", LANES[lane], "-p", "no:cacheprovider", *tests]
    command += ["-n", str(workers), "--dist", "loadfile"] if workers > 1 else []
    environment = {**os.environ, "PYTHONPATH": str(project), "TVMCONVGRAD_TEST_DATA": str(data_folder())}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    if done.returncode in (0, NO_TESTS):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[1]


def judge(project: Path, mutant: Mutant, lanes: Sequence[str], workers: int) -> tuple[str, str]:
    """The first lane that sees a mutant, and its test; two empty words where none does."""
    path = project / "tvmconvgrad" / mutant.file
    source = path.read_text(encoding="utf-8")
    for lane in lanes:
        path.write_text(mutant.changed(source), encoding="utf-8")
        test = caught_by(project, mutant.tests, lane, workers)
        path.write_text(source, encoding="utf-8")
        if test is None:
            continue
        if caught_by(project, [test], lane, 1):
            raise RuntimeError(f"{test} fails with nothing changed, too")
        return lane, test
    return "", ""


def main(words: Sequence[str] | None = None) -> int:
    """Judge the chosen mutants, a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose file has this text in its name")
    parser.add_argument("--lane", choices=LANES, action="append", help="run these lanes alone; may be given again")
    parser.add_argument("--workers", type=int, default=1, help="processes of pytest")
    given = parser.parse_args(words)
    chosen = [mutant for mutant in mutants() if given.only in mutant.file]
    lanes = given.lane or list(LANES)
    passed = 0
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-mutants-") as folder:
        project = Path(folder) / "project"
        shutil.copytree(ROOT, project, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for mutant in chosen:
            lane, test = judge(project, mutant, lanes, given.workers)
            passed += lane not in ("quick", "second")
            print(f"{lane or 'NOT SEEN':8} {mutant.file}: {mutant.breaks}: {test}", flush=True)
    print(f"{len(chosen)} faults, {passed} of them not seen by CI's lanes")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
