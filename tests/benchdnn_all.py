"""All of benchdnn's convolution and deconvolution lists, both directions, bit for bit: python -m tests.benchdnn_all

Each line's minibatch is cut to what is affordable, the tensors are small integers, and the result must equal PyTorch's.
With --results a run that was stopped goes on where it was; remove the file when the code has changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.support.oracles import benchdnn, data
from tests.support.oracles.descriptors import Descriptor, Inexpressible, descriptors

Job = tuple[int, Descriptor, str]


def judge(job: Job) -> tuple[str, str]:
    """right, wrong or skipped; and the reason."""
    turn, descriptor, direction = job
    try:
        case = benchdnn.case_of(descriptor, direction, turn)
        wrong = benchdnn.wrong_elements(case)
    except Inexpressible as reason:
        return "skipped", f"not expressible by attributes: {reason}"
    except MemoryError as reason:
        return "skipped", f"out of memory: {reason}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    return ("wrong", f"{wrong} wrong elements in {case}") if wrong else ("right", "")


def read_results(path: Path | None) -> dict[str, tuple[str, str]]:
    """What an earlier run has found, by job."""
    if path is None or not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["job"]: (line["verdict"], line["reason"]) for line in lines}


def name_of(job: Job) -> str:
    _, descriptor, direction = job
    return f"{'BWD_W' if direction == 'w' else 'BWD_D'} {descriptor}"


def pending(jobs: list[Job], known: dict[str, tuple[str, str]], progress: Progress) -> Iterator[Job]:
    task = progress.add_task("benchdnn", total=len(jobs))
    for job in jobs:
        if name_of(job) not in known:
            yield job
        progress.advance(task)


def run(jobs: list[Job], known: dict[str, tuple[str, str]], log: TextIO | None, console: Console) -> None:
    """Judge what is not known yet; the verdicts go into `known` and, line by line, into `log`."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        for job in pending(jobs, known, progress):
            verdict, reason = known[name_of(job)] = judge(job)
            if verdict == "wrong":
                console.print(f"wrong: {name_of(job)}: {reason}", markup=False, highlight=False)
            if log is not None:
                log.write(json.dumps({"job": name_of(job), "verdict": verdict, "reason": reason}) + "\n")
                log.flush()


def main() -> int:
    """Returns 1 where anything is wrong, 2 where there are no lists."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchdnn_all", description=__doc__)
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N equal parts, I from 1")
    parser.add_argument("--direction", choices=("w", "d"), help="filter (w) or data (d) gradients only")
    parser.add_argument("--only", default="", metavar="TEXT", help="only lines whose file or text contains this")
    parser.add_argument("--results", type=Path, help="a file that keeps the verdicts, to go on from")
    options = parser.parse_args()
    console = Console(stderr=True)
    found = [d for d in descriptors() if options.only in str(d)]
    if not found:
        console.print(data.skip_reason("shapes") if not descriptors() else f"no line has {options.only!r} in it")
        return 2
    part, parts = map(int, options.shard.split("/"))
    directions = options.direction or benchdnn.DIRECTIONS
    jobs = [(turn, d, direction) for turn, d in enumerate(found) for direction in directions]
    jobs = jobs[part - 1 :: parts]
    known = read_results(options.results)
    if options.results:
        with options.results.open("a") as log:
            run(jobs, known, log, console)
    else:
        run(jobs, known, None, console)
    verdicts = [known[name_of(job)] for job in jobs]
    counts = Counter(verdict for verdict, _ in verdicts)
    reasons = Counter(reason.partition(": ")[0] for verdict, reason in verdicts if verdict == "skipped")
    print(", ".join(f"{counts[word]} {word}" for word in ("right", "wrong", "skipped")), f"of {len(jobs)}")
    for reason, count in reasons.most_common():
        print(f"  skipped, {reason}: {count}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
