"""tvmconvgrad layers"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import rich_click as click
from rich.table import Table

from tvmconvgrad.cli.errors import UserError, user_errors
from tvmconvgrad.cli.help import Command
from tvmconvgrad.cli.options import INTS, Ints, NewFile
from tvmconvgrad.cli.output import console, output_file, print_table
from tvmconvgrad.layers import Layer, layers_text
from tvmconvgrad.layers.files import SUFFIXES
from tvmconvgrad.spec.values import counted, nearest


@click.command(cls=Command)
@click.argument("model", metavar="MODEL.py:FUNCTION")
@click.option(
    "--input", "shapes", type=INTS, multiple=True, required=True, help="Shape of an input, f32; repeatable, in order."
)
@click.option("-o", "output", metavar="FILE", type=NewFile(*SUFFIXES), help="Write .json or .toml.")
def layers(model: str, shapes: tuple[Ints, ...], output: Path | None) -> None:
    """List the convolution layers of a PyTorch model, as the file that `bench` and `build` take.

    FUNCTION of the file, or of a module MODEL:FUNCTION, returns the model, or is it. Its forward pass is run once, on
    shapes alone where that goes. Layers of the same shapes are one; `count` tells how many.

    \b
    tvmconvgrad layers model.py:make_model --input 8,3,224,224 -o layers.json
    tvmconvgrad build layers.json -o bundle
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError('PyTorch is not installed: pip install "tvmconvgrad[peers]"')
    from tvmconvgrad.layers.from_torch import layers_of

    with user_errors():
        found = layers_of(_made(model), *shapes)
    if output is None:
        click.echo(layers_text(found, ".json"), nl=False)
        return
    with output_file(output) as file:
        file.write(layers_text(found, output.suffix).encode())
    _show(found, output)


def _made(text: str) -> Any:
    """What the function gives; a UserError that says which step went wrong."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"MODEL: {text!r} names no function, expected for example model.py:make_model")
    module = _imported(place)
    if not hasattr(module, name):
        known = [word for word, value in vars(module).items() if callable(value)]
        raise UserError(f"{place}: has no {name!r}{nearest(name, known)}")
    found = getattr(module, name)
    if _is_model(found) or not callable(found):
        return found
    try:
        return found()
    except (Exception, SystemExit) as reason:  # the user's own code: it may raise anything
        raise UserError(f"{text}: raised {type(reason).__name__}: {reason}") from reason


def _is_model(value: object) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _imported(place: str) -> Any:
    """A module by its name, or the one in a file; as if that were run, its folder's modules can be imported."""
    path = Path(place)
    is_file = path.suffix == ".py" or "/" in place
    if is_file and not path.is_file():
        raise UserError(f"{place}: there is no such file")
    try:
        if not is_file:
            sys.path.insert(0, "")
            return importlib.import_module(place)
        sys.path.insert(0, str(path.absolute().parent))
        spec = importlib.util.spec_from_file_location(f"_model_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise UserError(f"{place}: is no file of Python, expected one that ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look for it
        spec.loader.exec_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as reason:  # the user's own code: it may raise anything
        raise UserError(f"{place}: cannot be imported: {type(reason).__name__}: {reason}") from reason
    return module


def _show(found: list[Layer], output: Path) -> None:
    table = Table("layer", "count", "input", "filters", "kernel", box=None, pad_edge=False)
    for layer in found:
        kernel = "x".join(map(str, layer.kernel))
        source = "x".join(map(str, (layer.batch, *layer.input_size, layer.channels)))
        table.add_row(layer.name, str(layer.count), source, str(layer.filters), kernel)
    print_table(table)
    console().print(f"{output}: {counted(len(found), 'layer')} of {sum(layer.count for layer in found)}", markup=False)
