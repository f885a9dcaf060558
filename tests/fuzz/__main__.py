"""Random problems of all operators, each by a rule, for a target, somewhere in memory: python -m tests.fuzz

What is wrong is made small, printed as a test, and written to a file of JSON lines, which --replay judges again.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.pool import Judged, Task
from tests.fuzz.running import run, tasks
from tests.fuzz.sample import Sample, as_test


def replayed(path: Path) -> list[Task]:
    """The samples of a file."""
    return [Sample.from_json(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def report(judged: Judged, file: Path | None) -> None:
    """One failure, as a test and as a line of a file."""
    print(described(judged), flush=True)
    if judged.sample is not None and file is not None:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(judged.sample.to_json() + "\n")


def described(judged: Judged) -> str:
    """A failure in words, with a test of it."""
    where = "" if isinstance(judged.task, Sample) else f"--seed {judged.task[0]} --first {judged.task[1]} --count 1: "
    test = "" if judged.sample is None else as_test(judged.sample, judged.verdict)
    return f"\n{where}{judged.verdict}\n{test}"


def main() -> int:
    """Returns 1 where anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, metavar="I", help="the number of the first sample")
    parser.add_argument("--count", type=int, help="how many samples")
    parser.add_argument("--minutes", type=float, help="for how long; 1 if there is no --count either")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; one a CPU if left out"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="judge the samples of such a file again")
    parser.add_argument("--failures", type=Path, metavar="FILE", help="where failing samples are written")
    parser.add_argument("--shrink", type=float, default=90.0, metavar="SECONDS", help="for each failure; 0: not at all")
    options = parser.parse_args()
    minutes = 1.0 if options.minutes is None and options.count is None else options.minutes
    seconds = None if minutes is None else 60 * minutes
    wanted = tasks(options.seed, options.first, options.count, seconds)
    samples = replayed(options.replay) if options.replay else wanted
    outcome = run(samples, options.jobs, lambda judged: report(judged, options.failures), options.shrink)
    print(outcome)
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
