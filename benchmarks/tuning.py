"""Tuning: how many candidates a second a search measures, after how many it has its gain, and what is gained.

    python benchmarks/tuning.py rate [--suite resnet_50] [--layer res2a_branch2b] [--trials 64] [--threads N]
    python benchmarks/tuning.py curve [SUITE...] [--layer TEXT] [--trials 192] [--threads N] [--target TARGET]
    python benchmarks/tuning.py gain [SUITE...] [--threads N] [--rounds 15] [--target TARGET] [--json FILE]

`rate` searches one weights gradient twice: by `tvmconvgrad tune`, and by TVM's own `tune_tir`, with the time that its
builder's workers need for their imports allowed for, which its default does not. Seconds are those of the whole search,
the start of all workers included, in a process that has imported TVM. `curve` searches layers for long, and prints what
would be gained if that ended after so many trials: the best of them, run in turn with the default. `gain` measures the
kernels of the logs beside the untuned ones, in turn, each in a process of its own: `tvmconvgrad bench --ours-too
untuned`; the column's ratios are the gains, and below them the means and the least.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import geometric_mean
from time import perf_counter

from tvmconvgrad.layers import select_gradients
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records.task import Task
from tvmconvgrad.runtime.threads import get_num_threads
from tvmconvgrad.tuning.search.search import Limits, Search
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.search.tasks import make_tasks, this_machine
from tvmconvgrad.tuning.session import builders
from tvmconvgrad.tuning.workers.measure import LocalMeasurer
from tvmconvgrad.tuning.workers.pool import Pool

_STOCK_BUILD_SECONDS = 300.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True, dest="way")
    one = ways.add_parser("rate")
    one.add_argument("--suite", default="resnet_50")
    one.add_argument("--layer", default="res2a_branch2b")
    one.add_argument("--trials", type=int, default=64)
    three = ways.add_parser("curve")
    three.add_argument("suites", nargs="*", default=["mobilenet_v2"])
    three.add_argument("--layer", default="block4")
    three.add_argument("--trials", type=int, default=192)
    two = ways.add_parser("gain")
    two.add_argument("suites", nargs="*", default=["resnet_50", "mobilenet_v2"])
    two.add_argument("--rounds", type=int, default=15)
    two.add_argument("--json")
    for way in (one, two, three):
        way.add_argument("--threads", type=int, default=get_num_threads())
    for way in (two, three):
        way.add_argument("--target", default="llvm -mcpu=native")
    options = parser.parse_args()
    {"rate": rate, "curve": curve, "gain": gain}[options.way](options)


def rate(options: argparse.Namespace) -> None:
    """Trials a second of both searches."""
    selection = select_gradients([options.suite], only="filters", substring=options.layer)
    target = parse_target()
    machine = str(this_machine()["cpu"])
    (task, *_) = make_tasks(((options.layer, each.problem) for _, each in selection), target, options.threads, machine)
    print(f"{task.problem}\n{target}, threads: {options.threads}, {machine}")
    for name, way in (("tvmconvgrad", ours), ("tune_tir", default_space)):
        begin = perf_counter()
        count, best = way(task, options.trials)
        seconds = perf_counter() - begin
        speed = f"best {task.problem.flops / best / 1e9:.1f} GFLOP/s" if best else "none was measured"
        print(f"{name:12} {count} trials in {seconds:.1f} s: {count / seconds:.2f} a second, {speed}", flush=True)


def curve(options: argparse.Namespace) -> None:
    """What was gained after so many trials, by layer and in the mean."""
    selection = select_gradients(options.suites, substring=options.layer)
    problems = ((f"{suite} {each.layer.name} {each.kind}", each.problem) for suite, each in selection)
    machine = str(this_machine()["cpu"])
    tasks = make_tasks(problems, parse_target(options.target), options.threads, machine)
    counts = sorted({*(count for count in (8, 16, 32, 64, 128) if count < options.trials), options.trials})
    print(f"{options.target}, threads: {options.threads}, {machine}\ntrials: {counts}")
    gains: list[list[float]] = []
    for task in tasks:
        with searching(task) as under_way:
            gains.append([under_way.run(Limits(count)).gain for count in counts])
        print(f"{task.names[0]:45}", *(f"{gain:6.3f}" for gain in gains[-1]), flush=True)
    means = [geometric_mean(column) for column in zip(*gains)]
    print(f"{'geometric mean':45}", *(f"{mean:6.3f}" for mean in means))
    print(f"{'part of the final gain':45}", *(f"{(mean - 1) / (means[-1] - 1):6.1%}" for mean in means))


def ours(task: Task, trials: int) -> tuple[int, float | None]:
    """Our search, without the final beside the default."""
    with searching(task) as under_way:
        found = under_way.run(Limits(trials))
    return len(found.times), found.best


@contextmanager
def searching(task: Task) -> Iterator[Search]:
    """A search that has not begun."""
    with (
        closing(LocalMeasurer()) as measurer,
        tempfile.TemporaryDirectory() as folder,
        Pool("tvmconvgrad.tuning.workers.build_worker", builders()) as pool,
        Search(Decisions(task, pool), Path(folder), pool, measurer) as under_way,
    ):
        yield under_way


def default_space(task: Task, trials: int) -> tuple[int, float | None]:
    """TVM's own."""
    import tvm
    from tvm.s_tir import meta_schedule

    from tvmconvgrad.schedules.default_space import workload

    target = tvm.target.Target({**task.target.to_dict(), "num-cores": task.threads})
    builder = meta_schedule.builder.LocalBuilder(timeout_sec=_STOCK_BUILD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        module = workload(task.problem)
        database = meta_schedule.tune_tir(module, target, folder, trials, builder=builder)
        times = [[float(each) for each in one.run_secs] for one in database.get_all_tuning_records()]
    measured = [min(seconds) for seconds in times if seconds and max(seconds) < 1e9]
    return len(times), min(measured, default=None)


def gain(options: argparse.Namespace) -> None:
    """Tuned beside untuned."""
    words = ["bench", *options.suites, "--peers", "none", "--ours-too", "untuned", "--rounds", str(options.rounds)]
    files = ["--json", options.json] if options.json else []
    words += ["--threads", str(options.threads), "--target", options.target]
    command = [sys.executable, "-m", "tvmconvgrad", *words, *files]
    raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
