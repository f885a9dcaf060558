"""tvmconvgrad demo"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import rich_click as click

from tvmconvgrad.cli.common.errors import UserError, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import NEW_FILE
from tvmconvgrad.cli.common.output import output_file
from tvmconvgrad.common.terminal import console, print_facts


@click.command(cls=Command)
@click.option(
    "-o",
    "--output",
    default="deblurred.png",
    help="Where the picture goes.",
    show_default=True,
    type=NEW_FILE,
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the camera's shake.")
def demo(output: Path, seed: int) -> int:
    """Blur a photograph by a filter, find the filter again, and sharpen the photograph with it.

    Both use gradient descent: ConvolutionBackpropFilters finds the filter, and ConvolutionBackpropData the photograph.
    The command writes a picture of all steps, and fails if an error stays above its bound.

    \b
    tvmconvgrad demo
    tvmconvgrad demo --seed 4 -o shaken.png
    """
    missing = [name for name, module in (("matplotlib", "matplotlib"), ("pillow", "PIL")) if not _installed(module)]
    if missing:
        raise UserError(f"the demo needs {' and '.join(missing)}: pip install 'tvmconvgrad[demo]'")
    return _demo(output, seed)


def _demo(output: Path, seed: int) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from tvmconvgrad.demo import deblurring
    from tvmconvgrad.demo.picture import draw

    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with user_errors(), Progress(*columns, console=console()) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, steps: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=steps)
            bars.update(tasks[what], completed=done)

        result = deblurring.deblur(seed, progress)
    with output_file(output) as file:
        draw(result, file)
    print_facts(
        {
            "found filter": _compared(result.filter_errors[-1], deblurring.FILTER_BOUND, "the filter"),
            "sharpened photograph": _compared(result.image_errors[-1], deblurring.IMAGE_BOUND, "the blur's error"),
            "picture": output,
        }
    )
    return 0 if result.succeeded else 1


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _compared(error: float, bound: float, whole: str) -> str:
    verdict = "below" if error < bound else "NOT below"
    return f"error {100 * error:.2g} % of {whole}, {verdict} the bound of {100 * bound:g} %"
