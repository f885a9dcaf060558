"""tvmconvgrad layers"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import rich_click as click
from rich.table import Table

from tvmconvgrad.cli.common.errors import UserError, user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.cli.common.options import INTS, Ints, NewFile
from tvmconvgrad.cli.common.output import output_file
from tvmconvgrad.common.terminal import console, print_table
from tvmconvgrad.layers import Layer, layers_text
from tvmconvgrad.layers.files import SUFFIXES
from tvmconvgrad.spec.values import counted, nearest, parse_ints

_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "c64": "complex64",
    "i64": "int64",
    "i32": "int32",
    "u8": "uint8",
    "bool": "bool",
}


class ModelInput(click.ParamType):  # type: ignore[type-arg]
    """A shape, with a colon and a type where it is another one than the model's parameters have: 8,128:i64."""

    name = "shape[:type]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Ints, str | None]:
        """The shape and the type, or an error that shows the text."""
        if isinstance(value, tuple):
            return value
        shape, colon, kind = value.partition(":")
        if colon and kind not in _TYPES:
            self.fail(f"{value!r}: type {kind!r}{nearest(kind, _TYPES)}, expected {', '.join(_TYPES)}", param, ctx)
        return INTS.convert(shape, param, ctx), kind or None


@click.command(cls=Command)
@click.argument("model", metavar="MODEL.py:FUNCTION")
@click.option(
    "--input",
    "inputs",
    type=ModelInput(),
    multiple=True,
    required=True,
    help="Shape of an input; repeat it for each input, in order. The type is that of most parameters, unless it is "
    "named after a colon: 8,128:i64.",
)
@click.option("-o", "output", metavar="FILE", type=NewFile(*SUFFIXES), help="Write .json or .toml.")
def layers(model: str, inputs: tuple[tuple[Ints, str | None], ...], output: Path | None) -> None:
    """List the convolution layers of a PyTorch model, in the format that `bench`, `build` and `tune` take.

    MODEL is a file or a module, and its FUNCTION returns the model or is the model itself. The forward pass runs once,
    on shapes alone if possible. Layers of the same shapes and type become one entry with a `count`. Convolutions that
    cannot be described, such as quantised ones, are listed on stderr.

    \b
    tvmconvgrad layers model.py:make_model --input 8,3,224,224 -o layers.json
    tvmconvgrad build layers.json -o bundle
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError('PyTorch is not installed: pip install "tvmconvgrad[peers]"')
    from tvmconvgrad.layers.from_torch import find_layers

    with user_errors(), redirect_stdout(sys.stderr):  # what the model prints is none of the file
        made = _made(model)
        found = find_layers(made, *(_input(*one) for one in inputs))
    for one in found.left_out:
        click.echo(f"left out: {one}", err=True)
    if output is None:
        click.echo(layers_text(found.layers, ".json"), nl=False)
        return
    with output_file(output) as file:
        file.write(layers_text(found.layers, output.suffix).encode())
    _show(found.layers, output)


def _input(shape: Ints, kind: str | None) -> Any:
    """What find_layers takes: a tensor where a type is named."""
    import torch

    from tvmconvgrad.layers.from_torch import MOST_AXES

    sizes = parse_ints("--input", shape, low=0, most=MOST_AXES)
    if kind is None:
        return sizes
    try:
        return torch.empty(sizes, dtype=getattr(torch, _TYPES[kind]), device="meta")
    except RuntimeError as reason:  # too large
        raise UserError(f"--input: {shape}: {reason}") from reason


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
    table = Table("layer", "count", "input", "filters", "kernel", "type", box=None, pad_edge=False)
    for layer in found:
        kernel = "x".join(map(str, layer.kernel))
        source = "x".join(map(str, (layer.batch, *layer.input_size, layer.channels)))
        table.add_row(layer.name, str(layer.count), source, str(layer.filters), kernel, layer.dtype)
    print_table(table)
    console().print(f"{output}: {counted(len(found), 'layer')} of {sum(layer.count for layer in found)}", markup=False)
