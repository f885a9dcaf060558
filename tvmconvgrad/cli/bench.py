"""tvmconvgrad bench"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from tvmconvgrad.cli.common.errors import UserError, cannot_write, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import NEW_FILE, Choice, selection_options
from tvmconvgrad.cli.common.output import output_file
from tvmconvgrad.common.terminal import console
from tvmconvgrad.layers import KINDS, Selection, select_gradients
from tvmconvgrad.machines.targets import DEFAULT, parse_target
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.values import nearest

if TYPE_CHECKING:
    from tvmconvgrad.bench.report import Report

_INSTALL = 'pip install "tvmconvgrad[bench]"'


@click.command(cls=Command)
@click.argument("suites", nargs=-1, required=True, metavar="SUITE...|LAYERS.json")
@click.option("--threads", default=1, show_default=True, help="Threads of each implementation.", type=click.IntRange(1))
@click.option(
    "--data-format", default="NXC", show_default=True, type=Choice(DATA_FORMATS), help="Layout of our tensors."
)
@click.option(
    "--peers", default="onednn,torch", show_default=True, help="Libraries to compare with: onednn, torch, or none."
)
@click.option(
    "--ours-too",
    multiple=True,
    metavar="CHOICES",
    help="Also measure a variant of our kernels: NCX, f32, bf16, untuned, direct or auto (the target's -algorithm), "
    "schedule=NAME, checkout=FOLDER (another checkout of this project), or several with commas; repeatable.",
)
@click.option(
    "--rounds", default=7, show_default=True, type=click.IntRange(1), help="Timed runs of each implementation."
)
@selection_options
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the integers in the inputs."
)
@click.option("--target", default=DEFAULT, show_default=True, help="What to compile for.")
@click.option("--json", "json_file", metavar="FILE", type=NEW_FILE, help="Write all numbers to this file.")
@click.option(
    "--plots",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the ratios and a roofline plot into this folder.",
)
def bench(
    suites: tuple[str, ...],
    threads: int,
    dtypes: tuple[str, ...] | None,
    data_format: str,
    peers: str,
    ours_too: tuple[str, ...],
    rounds: int,
    only: str | None,
    substring: str,
    batch: int | None,
    seed: int,
    target: str,
    json_file: Path | None,
    plots: Path | None,
) -> int:
    """Compare our kernels with oneDNN and PyTorch: gradients and forwards of the layers of known networks or of a file.

    SUITE is one of resnet_50, resnext_50, vgg_19, mobilenet_v2, convnext_t, stem, unet, unet_3d, deeplab, dcgan and
    wavenet, or all. Each implementation runs in a process of its own, and they take turns. Inputs are small integers.
    Our result must be exact; a library whose result differs is marked. A ratio is the library's time divided by ours:
    above 1 ours is faster.

    \b
    tvmconvgrad bench resnet_50 mobilenet_v2 --threads 2 --json results.json --plots plots
    tvmconvgrad bench layers.toml --peers none --dtype bf16 --ours-too f32
    """
    from tvmconvgrad.bench import variants
    from tvmconvgrad.bench.cpus import choose_cpus
    from tvmconvgrad.bench.report import Report

    with user_errors():
        selection = select_gradients(
            suites, batch=batch, dtypes=dtypes, data_format=data_format, only=only or KINDS, substring=substring
        )
        chosen = parse_target(target)
        if chosen.backend.is_gpu:
            raise UserError(f"--target: {str(chosen)!r} is a GPU's; benchmarks/gpu.py measures those")
        base = variants.ours(target)  # as it was given: another checkout resolves native for itself
        more = [variants.ours_too(text, base) for text in ours_too]
        others = variants.peers(_peers(peers))
        cpus = choose_cpus(threads)
    if plots is not None and importlib.util.find_spec("matplotlib") is None:  # before minutes of measuring
        raise UserError(f"--plots: matplotlib is not installed: {_INSTALL}")
    report = Report([base, *others, *more], chosen, cpus, rounds, seed, " ".join(["tvmconvgrad", *sys.argv[1:]]))
    return _measure(report, selection, json_file, plots)


def _measure(report: Report, selection: Selection, json_file: Path | None, plots: Path | None) -> int:
    try:
        with user_errors():
            return _run(report, selection)
    finally:  # also of what an interrupted run has measured
        if report.measured:
            _write(report, json_file, plots)


def _run(report: Report, selection: Selection) -> int:
    from tvmconvgrad.bench.tensors import WrongResult
    from tvmconvgrad.bench.workers.child import WorkerFailed

    try:
        report.run(selection, console())
    except WrongResult as reason:
        click.echo(f"Error: wrong result: {reason}", err=True)
        return 1
    except WorkerFailed as reason:
        click.echo(f"{reason.trace}Error: {reason}", err=True)
        return 1
    return 0


def _write(report: Report, json_file: Path | None, plots: Path | None) -> None:
    if json_file is not None:
        with output_file(json_file) as file:
            file.write((json.dumps(report.to_dict(), indent=1) + "\n").encode())
    if plots is not None:
        from tvmconvgrad.bench.results.plots import draw

        try:
            drawn = draw(report.measured, report.columns, report.roof, plots)
        except OSError as error:
            raise cannot_write(error.filename or plots, error) from error
        for path in drawn:
            console().print(f"drawn: {path}", markup=False)


def _peers(text: str) -> tuple[str, ...]:
    from tvmconvgrad.bench.variants import PEERS, missing

    names = () if text == "none" else tuple(text.split(","))
    for name in names:
        if name not in PEERS:
            close = nearest(name, (*PEERS, "none"))
            expected = "expected onednn, torch, both with a comma, or none"
            raise UserError(f"--peers: {name!r} is unknown{close}, {expected}")
    absent = missing(names)
    if absent:
        raise UserError(f"--peers: {' and '.join(absent)} not installed: {_INSTALL}, or leave out by --peers none")
    return names
