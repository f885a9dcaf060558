"""tvmconvgrad tune"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from tvmconvgrad.cli.common.errors import INTERRUPTED, UserError, cannot_write, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import (
    NEW_FILE,
    OPERATORS,
    Choice,
    Ints,
    NewFile,
    attribute_options,
    make_operator,
    selection_options,
    shapes_option,
)
from tvmconvgrad.cli.rpc import parse_address
from tvmconvgrad.common.progress import progress_bar
from tvmconvgrad.common.terminal import console, in_bytes, print_table
from tvmconvgrad.layers import select_gradients
from tvmconvgrad.machines.targets import DEFAULT, Target, check_host, parse_target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.records import logs
from tvmconvgrad.records.choice import SPACES
from tvmconvgrad.records.task import Task
from tvmconvgrad.runtime.cuda.function import check_runs
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.values import counted
from tvmconvgrad.tuning.search.tasks import make_tasks, this_machine
from tvmconvgrad.tuning.workers.measure import LocalMeasurer, ServersGone

if TYPE_CHECKING:
    from tvmconvgrad.tuning.remote.rpc import RpcMeasurer
    from tvmconvgrad.tuning.session import Display, Session

_INSTALL = 'pip install "tvmconvgrad[tune]"'
_NEEDED = ("psutil", "xgboost")


@click.command(cls=Command)
@click.argument("what", nargs=-1, required=True, metavar="SUITE...|LAYERS.json|OPERATOR")
@click.option("--trials", default=64, show_default=True, type=click.IntRange(1), help="Candidates for each gradient.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="Limit of the total time.  [default: none]")
@click.option("--threads", type=click.IntRange(1), help="Threads of a measured call.  [default: all CPUs]")
@click.option("--target", help=f"What to tune for.  [default: {DEFAULT}; with --rpc, that of the servers]")
@selection_options
@click.option(
    "--space",
    default=SPACES[0],
    show_default=True,
    type=Choice(SPACES),
    help="Search the numbers of our schedules, or TVM's default space.",
)
@click.option("--again", is_flag=True, help="Search even if the log has a result of at least this number of trials.")
@click.option(
    "--log-dir",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Use this folder instead of the user's logs.",
)
@click.option("--rpc", metavar="HOST:PORT", help="Measure on the servers of this tracker; `rpc` starts both.")
@click.option("--key", help="The servers' key, with --rpc.")
@click.option(
    "--pack",
    metavar="FILE.zip",
    type=NEW_FILE,
    help="Measure nothing: write the first candidates to a file, for a machine without a compiler.",
)
@click.option("--quiet", is_flag=True, help="Print only the summary.")
@click.option(
    "--report", metavar="FILE", type=NewFile(".html", ".png"), help="Write a report with plots, .html or .png."
)
@shapes_option(required=False)
@attribute_options
def tune(
    what: tuple[str, ...],
    trials: int,
    minutes: float | None,
    threads: int | None,
    target: str | None,
    dtypes: tuple[str, ...] | None,
    only: str | None,
    substring: str,
    batch: int | None,
    space: str,
    again: bool,
    log_dir: Path | None,
    rpc: str | None,
    key: str | None,
    pack: Path | None,
    quiet: bool,
    report: Path | None,
    shapes: tuple[Ints, Ints] | None,
    **attributes: Any,
) -> int:
    """Search for tile sizes and other numbers of schedules that are faster than the defaults, and keep them in a log.

    Name a suite of `tvmconvgrad bench` (or all), a JSON or TOML file of layers, or one operator with --shapes and its
    attributes. Results are written to the user's log, and later builds of these kernels use them. Ctrl-C keeps all
    measurements; the same command continues from there.

    \b
    tvmconvgrad tune resnet_50 --trials 64 --report resnet_50.html
    tvmconvgrad tune ConvolutionBackpropFilters --shapes 8,56,56,64 8,56,56,128 \\
        --auto-pad same_upper --filter-shape 3,3,64,128 --minutes 1
    tvmconvgrad tune resnet_50 --target "cuda -arch=sm_90" --trials 24 --pack resnet_50.zip
    """
    begin = time.monotonic()
    _check(report)
    folder = log_dir or logs.user_folder()
    if pack is not None:
        elsewhere = {
            "--rpc": rpc,
            "--key": key,
            "--minutes": minutes,
            "--threads": threads,
            "--report": report,
            "--again": again,
        }
        _refuse_with_pack({**elsewhere, "--space": space != SPACES[0]})
        with user_errors():
            chosen = parse_target(target)
            problems = _problems(what, shapes, dtypes, only, substring, batch, attributes)
        return _pack(pack, chosen, make_tasks(problems, chosen, 1, ""), trials, folder, quiet)
    servers = _servers(rpc, key)
    with user_errors():
        place = this_machine() if servers is None else servers.about()
        chosen = parse_target(target or place["target"])
        if chosen.arch is not None:
            place = _gpu(chosen, chosen.arch, servers is None, threads, space)
        elif servers is None:
            check_host(chosen)
        problems = _problems(what, shapes, dtypes, only, substring, batch, attributes)
    tasks = make_tasks(problems, chosen, threads or place["threads"], place["cpu"])
    from tvmconvgrad.tuning.session import Budget, Session  # imports TVM

    measurer = servers or LocalMeasurer(chosen.kind)
    display = _display(quiet, trials)
    return _run(Session(tasks, folder, Budget(trials, minutes, begin), display, measurer, space, again), report)


def _refuse_with_pack(given: dict[str, Any]) -> None:
    """UserError for an option that is of measuring."""
    for option, value in given.items():
        if value:
            raise UserError(f"{option} is of measuring, and --pack measures nothing")


def _pack(path: Path, target: Target, tasks: list[Task], trials: int, folder: Path, quiet: bool) -> int:
    from tvmconvgrad.tuning.remote.packing import pack  # imports TVM

    with progress_bar(quiet) as progress:
        try:
            count, failures = pack(path, target, tasks, trials, folder, progress)
        except OSError as reason:
            raise cannot_write(f"--pack: {path}", reason) from reason
    for failure in failures:
        click.echo(f"left out: {failure}", err=True)
    size = in_bytes(path.stat().st_size)
    what = f"{counted(count, 'candidate')} for {counted(len(tasks) - len(failures), 'distinct problem')}"
    console().print(f"written: {path}, {size}: {what}", markup=False)
    console().print(
        f"to be measured: python -m tvmconvgrad.tuning.remote.offline {path.name} found.jsonl", markup=False
    )
    return 1 if failures else 0


def _gpu(target: Target, arch: str, here: bool, threads: int | None, space: str) -> dict[str, Any]:
    """What a search has to know of this machine's first GPU. UserError where the target cannot be measured on it."""
    if not here:
        raise UserError(f"--rpc: servers measure on CPUs, and the target is {str(target)!r}")
    if threads is not None:
        raise UserError(f"--threads is of a CPU's calls, and the target is {str(target)!r}")
    if space != SPACES[0]:
        raise UserError(f"--space: {space} is for CPUs, and the target is {str(target)!r}")
    try:
        device = driver.driver()
    except driver.MissingGpu as reason:
        raise UserError(f"--target: {str(target)!r} is measured on a GPU, and {reason}") from None
    check_runs(arch, 0, device.architecture(0))
    return {"cpu": device.name(0), "target": str(target), "threads": 1}


def _servers(address: str | None, key: str | None) -> RpcMeasurer | None:
    if (address is None) != (key is None):
        raise UserError("--rpc and --key go together")
    if address is None or key is None:
        return None
    host, port = parse_address("--rpc", address)
    from tvmconvgrad.tuning.remote.rpc import RpcMeasurer, Tracker  # imports TVM

    try:
        return RpcMeasurer(Tracker(host, port, key))
    except ServersGone as reason:
        raise UserError(f"--rpc: {address}: {reason}") from reason


def _run(session: Session, report: Path | None) -> int:
    from tvmconvgrad.tuning.report import summary, write

    with user_errors():
        try:
            session.run()
        except OSError as reason:
            raise UserError(f"{session.folder}: {reason}") from reason
    print_table(summary(session.tasks, session.entries))
    if report is not None:
        title = f"tuned for {session.tasks[0].target if session.tasks else 'nothing'}"
        try:
            write(report, title, session.tasks, session.found, session.entries)
        except OSError as reason:
            raise cannot_write(report, reason) from reason
        console().print(f"written: {report}", markup=False)
    if session.left_out:
        click.echo(f"No time was left for {counted(session.left_out, 'layer')}.", err=True)
    if session.interrupted:
        click.echo("Stopped. What was measured is kept; the same command goes on from there.", err=True)
        return INTERRUPTED
    return 0


def _display(quiet: bool, trials: int) -> Display:
    from tvmconvgrad.tuning.progress import Bars, Lines, Quiet

    if quiet:
        return Quiet()
    return Bars(console(), trials) if console().is_terminal else Lines(console())


def _problems(
    what: tuple[str, ...],
    shapes: tuple[Ints, Ints] | None,
    dtypes: tuple[str, ...] | None,
    only: str | None,
    substring: str,
    batch: int | None,
    attributes: dict[str, Any],
) -> list[tuple[str, Problem]]:
    """Named problems of what was asked for."""
    if what[0] in OPERATORS:
        if len(what) > 1 or shapes is None:
            raise UserError(f"{what[0]} is tuned alone, and needs --shapes")
        operator = make_operator(what[0], attributes, len(shapes[0]) - 2)
        return [(f"{what[0]} {dtype}", operator.problem(*shapes, dtype=dtype)) for dtype in dtypes or ("f32",)]
    given = sorted(name for name, value in attributes.items() if value is not None and name != "data_format")
    if given or shapes is not None:
        option = f"--{(given or ['shapes'])[0].replace('_', '-')}"
        raise UserError(f"{option} goes with one operator, and {what[0]!r} is none")
    data_format = attributes["data_format"] or "NXC"
    if data_format not in DATA_FORMATS:
        raise UserError(f"--data-format: got {data_format!r}, expected {' or '.join(DATA_FORMATS)}")
    found = select_gradients(what, batch=batch, dtypes=dtypes, data_format=data_format, only=only, substring=substring)
    return [
        (
            f"{suite} {gradient.layer.name} {gradient.kind}{'' if gradient.dtype == 'f32' else ' ' + gradient.dtype}",
            gradient.problem,
        )
        for suite, gradient in found
    ]


def _check(report: Path | None) -> None:
    """Before minutes of searching."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise UserError(f"a search needs {' and '.join(absent)}: {_INSTALL}")
    if report is not None and importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"--report: matplotlib is not installed: {_INSTALL}")
