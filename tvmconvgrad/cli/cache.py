"""tvmconvgrad cache"""

from __future__ import annotations

import re
import time
from typing import Any

import rich_click as click

import tvmconvgrad
from tvmconvgrad.cache.limit import VARIABLE, limit
from tvmconvgrad.cache.store import KernelCache, Summary
from tvmconvgrad.cli.common.errors import user_errors
from tvmconvgrad.cli.common.help import Group
from tvmconvgrad.cli.common.options import OPERATORS, Choice
from tvmconvgrad.common.terminal import console, in_bytes
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.spec.values import counted

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class _Age(click.ParamType):  # type: ignore[type-arg]
    """A time such as 90m, 12h, 30d or 2w, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        found = re.fullmatch(r"([0-9]{1,6})([mhdw])", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no age, expected a number and m, h, d or w, such as 30d", param, ctx)
        return float(int(found[1]) * _UNITS[found[2]])


class _TargetText(click.ParamType):  # type: ignore[type-arg]
    """A target, as kernels' are written."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        """The target; an error in words for what is none."""
        with user_errors():
            return value if isinstance(value, Target) else parse_target(value)


@click.group(cls=Group)
def cache() -> None:
    """List the built kernels that are kept on disk, or remove them.

    The folder is the user's cache folder, or TVMCONVGRAD_CACHE_DIR. If it is larger than TVMCONVGRAD_CACHE_MAXSIZE
    (2 GiB) after a build, the kernels that were used longest ago are removed.

    \b
    tvmconvgrad cache list
    tvmconvgrad cache clear --older-than 30d --dry-run
    tvmconvgrad cache clear --yes
    """


@cache.command("list")
def list_entries() -> None:
    """List the kernels: what they compute, for which target, and how."""
    with user_errors():
        entries = KernelCache().entries()
    for entry in entries:
        _show(entry)
    console().print(f"{counted(len(entries), 'kernel')} in {KernelCache().folder}")


@cache.command()
def size() -> None:
    """Show the size of the folder, and its limit."""
    store = KernelCache()
    with user_errors():
        most = limit()
        allowed = f"no limit, by {VARIABLE}" if most is None else f"at most {in_bytes(most)}, by {VARIABLE}"
        console().print(f"{in_bytes(store.size())} in {store.folder} ({allowed})")


@cache.command()
@click.option("--operator", type=Choice(OPERATORS), help="Only kernels of this operator, under both of its names.")
@click.option("--older-than", metavar="AGE", type=_Age(), help="Only kernels unused for so long: 90m, 12h, 30d, 2w.")
@click.option("--target", metavar="TARGET", type=_TargetText(), help="Only kernels of this target.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def clear(operator: str | None, older_than: float | None, target: Target | None, dry_run: bool, yes: bool) -> None:
    """Remove kernels, all by default. They are built again when they are needed."""
    store = KernelCache()
    with user_errors():
        entries = [entry for entry in store.entries() if _is_meant(entry, operator, older_than, target)]
    what = f"{counted(len(entries), 'kernel')} ({in_bytes(sum(entry.file_bytes for entry in entries))})"
    if dry_run:
        for entry in entries:
            _show(entry)
        console().print(f"would remove {what} from {store.folder}")
        return
    if not yes:
        click.confirm(f"Remove {what} from {store.folder}?", abort=True)
    everything = operator is None and older_than is None and target is None
    with user_errors():
        removed = store.clear(None if everything else entries)
    console().print(f"removed {counted(removed.kernels, 'kernel')} ({in_bytes(removed.bytes)}) from {store.folder}")


def _is_meant(entry: Summary, operator: str | None, older_than: float | None, target: Target | None) -> bool:
    """Whether all that is asked for fits an entry, of whatever version of the package."""
    if operator is not None:
        old_name = getattr(tvmconvgrad, operator).name
        if not str(entry.facts.get("problem")).startswith(f"{old_name} "):
            return False
    if target is not None and entry.description.get("target") != str(target):
        return False
    return older_than is None or time.time() - entry.used > older_than


def _show(entry: Summary) -> None:
    out = console()
    out.print(f"[bold]{entry.key[:12]}[/bold]  {in_bytes(entry.library_bytes)}  {entry.description.get('target')}")
    for fact in ("problem", "schedule"):
        out.print(f"  {entry.facts.get(fact)}", markup=False)
