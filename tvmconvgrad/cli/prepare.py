"""tvmconvgrad prepare"""

from __future__ import annotations

import rich_click as click

from tvmconvgrad.cache.folder import default_folder
from tvmconvgrad.cli.common.errors import user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import layout_options, selection_options
from tvmconvgrad.common.terminal import print_facts
from tvmconvgrad.machines.targets import DEFAULT
from tvmconvgrad.preparing import prepare as prepare_kernels


@click.command(cls=Command)
@click.argument("layers", nargs=-1, required=True, metavar="LAYERS.json|SUITE...")
@click.option(
    "--target", "targets", multiple=True, default=(DEFAULT,), show_default=True, help="A CPU or a GPU; repeatable."
)
@layout_options
@selection_options
def prepare(
    layers: tuple[str, ...],
    targets: tuple[str, ...],
    dtypes: tuple[str, ...] | None,
    data_format: str,
    filter_format: str | None,
    only: str | None,
    substring: str,
    batch: int | None,
) -> None:
    """Build the kernels of layers into the cache, on all CPUs, so that programs find them there and need not wait.

    LAYERS is a file of layers, which `tvmconvgrad layers` can write, or the name of a suite. Kernels that are in the
    cache are not built again.

    \b
    tvmconvgrad prepare resnet_50
    tvmconvgrad prepare layers.json --dtype bf16 --batch 64
    """
    with user_errors():
        built = prepare_kernels(
            layers,
            target=targets,
            dtype=dtypes,
            batch=batch,
            data_format=data_format,
            filter_format=filter_format,
            only=only,
            substring=substring,
            progress=True,
        )
    print_facts({"cache": default_folder(), "built": built})
