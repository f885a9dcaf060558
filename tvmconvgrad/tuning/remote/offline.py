"""Measures a pack of candidates where there is no compiler.

    tvmconvgrad tune resnet_50 --target "cuda -arch=sm_90" --pack resnet_50.zip  # where the compiler is
    python -m tvmconvgrad.tuning.remote.offline resnet_50.zip found.jsonl        # where the GPU is
    tvmconvgrad log merge found.jsonl                                            # where kernels are made

The second machine needs Python, NumPy, ml_dtypes and this package's source; of a GPU its driver. Candidates are
measured as a search does it, the best run beside the default, and what is found is a line of a log. What is in
FOUND.jsonl is not measured again: after Ctrl-C, or `--minutes`, the same command goes on. Exit code 1 where a task
could not be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

from tvmconvgrad.bench.cpus import cpu_name
from tvmconvgrad.files.new_file import write_text
from tvmconvgrad.machines.targets import Target, check_host
from tvmconvgrad.nvidia import driver
from tvmconvgrad.records.choice import VERSION
from tvmconvgrad.records.entry import DamagedEntry, Entry, key, parse
from tvmconvgrad.records.task import Task
from tvmconvgrad.runtime.cuda.function import check_runs
from tvmconvgrad.spec.values import counted
from tvmconvgrad.tuning.remote.pack import Pack, PackedTask
from tvmconvgrad.tuning.search.final import FINALISTS, decide
from tvmconvgrad.tuning.workers.measure import MANY_TIMES_SLOWER, LocalMeasurer, Measurer
from tvmconvgrad.tuning.workers.pool import TrialFailed

_INTERRUPTED = 130  # as shells report SIGINT
Say = Callable[[str], object]


def _say(line: str) -> None:
    print(line, flush=True)


def measure_pack(
    pack: Pack, found: Path, measurer: Measurer, threads: int, machine: str, end: float = float("inf"), say: Say = _say
) -> int:
    """Measure a pack's tasks until a time on time.monotonic's clock, and append what is found to a log.

    Returns how many tasks failed. OSError, DamagedPack, DamagedEntry where `found` is no log.
    """
    known, failed = _known(found), 0
    for place, packed in enumerate(pack.tasks, 1):
        task = packed.on(pack.target, threads, machine)
        about = f"[{place}/{len(pack.tasks)}] {task.title}"
        if (key(task.problem, task.target, pack.tvm, VERSION), threads, machine) in known:
            say(f"{about}: was measured before")
        elif time.monotonic() >= end:
            say(f"{about}: no time is left")
        else:
            try:
                entry, why = _measure(pack, packed, task, measurer, say)
            except TrialFailed as reason:
                failed += 1
                say(f"{about}: {reason}")
                continue
            with found.open("a", encoding="utf-8") as file:
                file.write(entry.line())
            say(f"{about}: {_outcome(entry, why)}")
    return failed


def _measure(pack: Pack, packed: PackedTask, task: Task, measurer: Measurer, say: Say) -> tuple[Entry, str]:
    """What is found for a task, and why nothing is better than the default, where that is so.

    TrialFailed where its default cannot be measured.
    """
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-away-") as folder:
        default, *others = map(str, pack.unpack(packed, Path(folder)))
        measurer.prepare(task, default)
        best = median(measurer.measure(default, float("inf")))
        times: dict[int, float] = {}
        for number, library in enumerate(others):
            try:
                times[number] = median(measurer.measure(library, MANY_TIMES_SLOWER * best))
            except TrialFailed as reason:
                say(f"  {packed.candidates[1 + number].plan}: {reason}")
                continue
            best = min(best, times[number])
        finalists = sorted(times, key=lambda number: times[number])[:FINALISTS]
        verdict = decide(measurer, default, [others[number] for number in finalists], best)
    winner = None if verdict.winner is None else packed.candidates[1 + finalists[verdict.winner]]
    entry = Entry.of(
        task,
        pack.tvm,
        winner,
        trials=1 + len(others),
        exhausted=False,
        gain=verdict.gain,
        seconds=verdict.seconds,
    )
    return entry, verdict.why


def _outcome(entry: Entry, why: str) -> str:
    what = f"{entry.gain:.2f} times as fast by {entry.plan}" if entry.rule else f"the default is best: {why}"
    return f"{counted(entry.trials, 'trial')}, {entry.seconds * 1e6:.1f} us, {what}"


def _known(found: Path) -> set[tuple[str, int, str]]:
    """What a log has: of each entry the key, the threads, and the machine. A last line that was cut off is removed."""
    text = found.read_text(encoding="utf-8") if found.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    try:
        known = {(entry.key, entry.threads, entry.cpu) for entry in map(parse, whole.splitlines())}
    except DamagedEntry as reason:
        raise DamagedEntry(f"{found}: is no log, or is damaged: {reason}") from None
    if whole != text:
        if not known:
            raise DamagedEntry(f"{found}: is no log")
        write_text(found, whole)
    return known


def here(target: Target) -> str:
    """What this machine's GPU, or CPU, calls itself. ValueError, MissingGpu where a target's code does not run here."""
    if target.arch is None:
        check_host(target)
        return cpu_name()
    device = driver.driver()
    check_runs(target.arch, 0, device.architecture(0))
    return device.name(0)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and say what was found."""
    given = _parse(words)
    try:
        pack = Pack(given.pack)
        machine = here(pack.target)
        end = time.monotonic() + 60 * given.minutes
        with closing(LocalMeasurer(pack.target.kind)) as measurer:
            failed = measure_pack(pack, given.found, measurer, _threads(given.threads, pack.target), machine, end)
    except (OSError, ValueError, driver.MissingGpu) as reason:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. What was measured is kept; the same command goes on from there.", file=sys.stderr)
        return _INTERRUPTED
    return 1 if failed else 0


def _threads(wanted: int | None, target: Target) -> int:
    """Of a measured call. ValueError."""
    cpus = len(os.sched_getaffinity(0))
    if wanted is None:
        return cpus if target.arch is None else 1
    if target.arch is not None:
        raise ValueError(f"--threads is of a CPU's calls, and the pack is for {str(target)!r}")
    if not 1 <= wanted <= cpus:
        raise ValueError(f"--threads: got {wanted}, expected 1 to {cpus}, the CPUs that this process may use")
    return wanted


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tvmconvgrad.tuning.remote.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pack", type=Path, metavar="PACK", help="what `tvmconvgrad tune --pack` has written")
    parser.add_argument("found", type=Path, metavar="FOUND.jsonl", help="a log, to which what is found is appended")
    parser.add_argument("--threads", type=int, help="of a measured call, on a CPU; by default all CPUs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no task after this time")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
