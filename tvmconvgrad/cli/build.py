"""tvmconvgrad build"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from tvmconvgrad.cli.common.errors import cannot_write, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import layout_options, selection_options
from tvmconvgrad.common.progress import progress_bar
from tvmconvgrad.common.terminal import in_bytes, print_facts
from tvmconvgrad.deploy.api import build as build_bundle
from tvmconvgrad.machines.targets import DEFAULT


@click.command(cls=Command)
@click.argument("layers", nargs=-1, required=True, metavar="LAYERS.json|SUITE...")
@click.option(
    "--target", "targets", multiple=True, default=(DEFAULT,), show_default=True, help="A CPU or a GPU; repeatable."
)
@click.option(
    "-o", "folder", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="The bundle: a new folder."
)
@click.option("--name", help="Name of the library, and prefix of all C names.  [default: that of LAYERS]")
@click.option("--static", is_flag=True, help="Also write a static library.")
@click.option("--accumulate", is_flag=True, help="Kernels add to the old values of their results.")
@click.option("--bias-delta", is_flag=True, help="Kernels also compute the bias gradient.")
@click.option("--bias", is_flag=True, help="Kernels add a bias to their results; for --only forward.")
@click.option("--result-dtype", metavar="TYPE", help="f32 keeps results in f32, whatever the inputs' type.")
@layout_options
@selection_options
def build(
    layers: tuple[str, ...],
    targets: tuple[str, ...],
    folder: Path,
    name: str | None,
    static: bool,
    accumulate: bool,
    bias_delta: bool,
    bias: bool,
    result_dtype: str | None,
    dtypes: tuple[str, ...] | None,
    data_format: str,
    filter_format: str | None,
    only: str | None,
    substring: str,
    batch: int | None,
) -> None:
    """Build a bundle: a folder with a library of layers' gradients, which C, C++ and Python call without a compiler.

    LAYERS is a file of layers, which `tvmconvgrad layers` can write, or the name of a suite. With several targets, the
    library chooses the best one for the CPU that it runs on.

    \b
    tvmconvgrad build layers.json --target "llvm -mcpu=x86-64-v3" --target "llvm -mcpu=x86-64-v4" -o bundle
    tvmconvgrad build resnet_50 --batch 1 --static --target "llvm -mcpu=cortex-a76" -o bundle
    """
    with user_errors(), progress_bar() as progress:
        try:
            built = build_bundle(
                layers,
                folder,
                targets=targets,
                name=name,
                static=static,
                batch=batch,
                dtypes=dtypes,
                data_format=data_format,
                filter_format=filter_format,
                only=only,
                substring=substring,
                accumulate=accumulate,
                bias_delta=bias_delta,
                bias=bias,
                result_dtype=result_dtype,
                progress=progress,
            )
        except OSError as error:
            raise cannot_write(error.filename or folder, error) from error
    sizes = {path.name: in_bytes(path.stat().st_size) for path in sorted(built.iterdir())}
    print_facts({"bundle": built, **sizes})
