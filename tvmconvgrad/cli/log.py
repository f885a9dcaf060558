"""tvmconvgrad log"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TypeVar

import rich_click as click

from tvmconvgrad.cli.common.errors import UserError, cannot_write
from tvmconvgrad.cli.common.help import Group
from tvmconvgrad.common.terminal import console, in_seconds
from tvmconvgrad.files.new_file import write_text
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records import logs
from tvmconvgrad.records.entry import Entry
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.values import counted

T = TypeVar("T")

_FOLDER = click.Path(file_okay=False, path_type=Path)
_log_dir = click.option("--log-dir", metavar="FOLDER", type=_FOLDER, help="Use this folder instead of the user's logs.")


@click.group(cls=Group)
def log() -> None:
    """Manage the logs in which `tvmconvgrad tune` keeps its results, and by which kernels are built.

    The user's logs are in the user's data folder, or in TVMCONVGRAD_TUNING_DIR. They take precedence over the shipped
    logs.

    \b
    tvmconvgrad log list
    tvmconvgrad log export resnet.jsonl --target "llvm -mcpu=x86-64-v3"
    tvmconvgrad log merge resnet.jsonl
    """


@log.command("list")
@_log_dir
@click.option("--shipped", is_flag=True, help="The shipped logs in place of the user's.")
def list_entries(log_dir: Path | None, shipped: bool) -> None:
    """List the entries: what was tuned, for which target, and the gain."""
    folder = _folder(log_dir, shipped)
    entries = [entry for path in logs.files(folder) for entry in _read(path)]
    for entry in entries:
        _show(entry)
    about = ""
    if entries:
        mean = geometric_mean([entry.gain for entry in entries])
        about = f", {mean:.3f} times as fast as the default in geometric mean"
    console().print(f"{counted(len(entries), 'entry', 'entries')} in {folder}{about}", markup=False)


@log.command()
@_log_dir
@click.option("--shipped", is_flag=True, help="The shipped logs in place of the user's.")
def check(log_dir: Path | None, shipped: bool) -> int:
    """Schedule every entry again, and list entries that no longer apply; exit code 1 if there is one."""
    bad = 0
    folder = _folder(log_dir, shipped)
    for path in logs.files(folder):
        content = _content(path)
        refused = [
            f"{Problem.from_dict(one.problem)}: {why}" for one in content.entries.values() if (why := _refused(one))
        ]
        for problem in (*content.problems, *refused):
            console().print(f"{path}: {problem}", markup=False)
        bad += len(content.problems) + len(refused)
        console().print(
            f"{path}: {counted(len(content.entries) - len(refused), 'entry', 'entries')} of use", markup=False
        )
    return 1 if bad else 0


@log.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE|FOLDER..."
)
@_log_dir
def merge(files: tuple[Path, ...], log_dir: Path | None) -> None:
    """Add the entries of other logs to the user's; of two for the same problem and target, the later one is kept."""
    folder = _folder(log_dir)
    paths = [path for file in files for path in (logs.files(file) if file.is_dir() else [file])]
    mine = {entry.key: entry for path in logs.files(folder) for entry in _read(path)}
    new = {entry.key: entry for path in paths for entry in sorted(_read(path), key=_when)}
    added = [entry for entry in new.values() if entry.key not in mine or _when(mine[entry.key]) < _when(entry)]
    _written(lambda: logs.append(folder, added))
    console().print(f"added {counted(len(added), 'entry', 'entries')} to {folder}", markup=False)


@log.command()
@_log_dir
@click.option("--trials", is_flag=True, help="Also remove the measurements of searches, which then start again.")
def prune(log_dir: Path | None, trials: bool) -> None:
    """Remove entries that are damaged, outdated, or replaced by a later one."""
    folder = _folder(log_dir)
    removed = sum(_written(partial(logs.rewrite, path)) for path in logs.files(folder))
    console().print(f"removed {counted(removed, 'line')} from {folder}", markup=False)
    if trials:
        found = list(folder.glob("*/trials"))
        for each in found:
            shutil.rmtree(each, ignore_errors=True)
        console().print(f"removed the trials of {counted(len(found), 'target')}", markup=False)


@log.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.jsonl|FOLDER")
@_log_dir
@click.option("--target", help="Only for this target.  [default: all]")
@click.option("--metaschedule", is_flag=True, help="Write a folder that MetaSchedule's JSONDatabase reads.")
def export(file: Path, log_dir: Path | None, target: str | None, metaschedule: bool) -> None:
    """Write the user's entries to one file, to merge it elsewhere, or as a database of MetaSchedule."""
    wanted = None if target is None else str(parse_target(target))
    entries = [entry for path in logs.files(_folder(log_dir)) for entry in _read(path)]
    entries = [entry for entry in entries if wanted in (None, entry.target)]
    if metaschedule:
        from tvmconvgrad.tuning.exporting import write_database  # imports TVM

        count = _written(lambda: write_database(file, entries))
        console().print(f"wrote {counted(count, 'record')} to {file}", markup=False)
        return
    _written(lambda: write_text(file, "".join(entry.line() for entry in entries)))
    console().print(f"wrote {counted(len(entries), 'entry', 'entries')} to {file}", markup=False)


def _folder(log_dir: Path | None, shipped: bool = False) -> Path:
    if shipped and log_dir is not None:
        raise UserError("--shipped and --log-dir name two folders, expected one of them")
    return logs.SHIPPED if shipped else log_dir or logs.user_folder()


def _content(path: Path) -> logs.Content:
    try:
        return logs.read(path)
    except OSError as reason:
        raise UserError(f"{path}: cannot be read: {reason.strerror or reason}") from reason


def _read(path: Path) -> Iterable[Entry]:
    """The entries that are of use; what is not is told on stderr."""
    content = _content(path)
    for problem in content.problems:
        click.echo(f"{path}: {problem}", err=True)
    return content.entries.values()


def _when(entry: Entry) -> str:
    return entry.date


def _refused(entry: Entry) -> str | None:
    """Why an entry's choice does not apply any more."""
    from tvmconvgrad.records.choice import ChoiceRefused  # the rest imports TVM
    from tvmconvgrad.schedules.chosen import chosen

    if entry.choice is None:
        return None
    try:
        chosen(Problem.from_dict(entry.problem), parse_target(entry.target), entry.choice)
    except ChoiceRefused as reason:
        return str(reason)
    return None


def _written(write: Callable[[], T]) -> T:
    try:
        return write()
    except OSError as reason:
        raise cannot_write(reason.filename, reason) from reason


def _show(entry: Entry) -> None:
    gain = "the default is best" if entry.rule is None else f"{entry.gain:.3f} times as fast as the default"
    console().print(f"{Problem.from_dict(entry.problem)}", style="bold", markup=False)
    lines = (
        f"{entry.target}; {in_seconds(entry.seconds)}, {gain}",
        f"{counted(entry.trials, 'trial')} on {entry.date[:10]}, threads: {entry.threads}, {entry.cpu}, "
        f"TVM {entry.tvm}, schedules {entry.version}",
        *([entry.plan] if entry.rule else []),
    )
    for line in lines:
        console().print(f"  {line}", markup=False)
