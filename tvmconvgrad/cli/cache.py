"""tvmconvgrad cache"""

from __future__ import annotations

import rich_click as click

from tvmconvgrad.cli.errors import user_errors
from tvmconvgrad.cli.help import Group
from tvmconvgrad.cli.output import console, in_bytes
from tvmconvgrad.compiling.cache import KernelCache, Summary
from tvmconvgrad.spec.values import counted


@click.group(cls=Group)
def cache() -> None:
    """Look at the built kernels that are kept on disk, or remove them.

    The folder is the user's cache folder, or the one that TVMCONVGRAD_CACHE_DIR names.

    \b
    tvmconvgrad cache list
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
    """Tell how much the folder holds."""
    store = KernelCache()
    with user_errors():
        console().print(f"{in_bytes(store.size())} in {store.folder}")


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(yes: bool) -> None:
    """Remove all kernels; they are built again when needed."""
    store = KernelCache()
    with user_errors():
        count = len(store.entries())
    if not yes:
        click.confirm(f"Remove {counted(count, 'kernel')} from {store.folder}?", abort=True)
    with user_errors():
        removed = store.clear()
    console().print(f"removed {counted(removed, 'kernel')} from {store.folder}")


def _show(entry: Summary) -> None:
    out = console()
    out.print(f"[bold]{entry.key[:12]}[/bold]  {in_bytes(entry.library_bytes)}  {entry.description.get('target')}")
    for fact in ("problem", "schedule"):
        out.print(f"  {entry.facts.get(fact)}", markup=False)
