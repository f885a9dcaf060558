"""Options that several commands share: an operator, its attributes, the target, and the choice of layers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

import tvmconvgrad
from tvmconvgrad.cli.common.errors import UserError, user_errors
from tvmconvgrad.layers import KINDS
from tvmconvgrad.machines.targets import DEFAULT
from tvmconvgrad.operators import Compiled
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.dtypes import DTYPES
from tvmconvgrad.spec.layouts import FILTER_FORMATS
from tvmconvgrad.spec.values import nearest

Ints = tuple[int, ...]

OPERATORS = [
    f"{family}{way}"
    for family in ("Convolution", "ConvTranspose")
    for way in ("BackpropFilters", "BackpropData", "BackwardWeights", "BackwardData")
]


class IntList(click.ParamType):  # type: ignore[type-arg]
    """Ints, separated by commas or x: 3,3 or 8x56x56x64."""

    name = "ints"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Ints:
        """The ints, or an error that shows the text."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"-?\d+([,x]-?\d+)*", value):
            self.fail(f"{value!r} is no list of ints, expected for example 3,3", param, ctx)
        return tuple(int(number) for number in re.split("[,x]", value))


INTS = IntList()


class Choice(click.Choice[str]):
    """A choice whose error suggests the nearest word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, or an error with all words."""
        if value not in self.choices:
            expected = ", ".join(map(repr, self.choices))
            self.fail(f"{value!r} is not one of {expected}{nearest(str(value), self.choices)}", param, ctx)
        return super().convert(value, param, ctx)


class NewFile(click.ParamType):  # type: ignore[type-arg]
    """The path of a file to be written. It is checked before minutes of work."""

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path; UserError where it has none of the suffixes, or its folder is missing or read-only."""
        path = Path(value)
        option = f"{max(param.opts, key=len)}: " if isinstance(param, click.Option) else ""
        if self._suffixes and path.suffix not in self._suffixes:
            raise UserError(f"{option}{path} ends with {path.suffix!r}, expected {' or '.join(self._suffixes)}")
        folder = path.absolute().parent
        why = None
        if not folder.is_dir():
            why = f"there is no folder {folder}"
        elif path.is_dir():
            why = "it is a folder"
        elif not os.access(path if path.exists() and not path.is_file() else folder, os.W_OK):
            why = f"the folder {folder} is read-only"
        if why is not None:
            raise UserError(f"{option}{path}: cannot be written: {why}")
        return path


NEW_FILE = NewFile()

# name, type, what it is; the operators themselves check everything else
_ATTRIBUTES: list[tuple[str, Any, str]] = [
    ("strides", INTS, "Strides, one for each spatial axis.  [default: ones]"),
    ("dilations", INTS, "Dilations, one for each spatial axis.  [default: ones]"),
    ("pads-begin", INTS, "Pads at the beginning of each spatial axis; required unless --auto-pad chooses them."),
    ("pads-end", INTS, "Pads at the end of each spatial axis."),
    ("auto-pad", str, "How pads are chosen: none (by --pads-begin and --pads-end), same_upper, same_lower or valid."),
    ("output-padding", INTS, "Elements at the end of each spatial axis beyond those that the other shapes imply."),
    ("groups", int, "Number of groups of channels.  [default: 1]"),
    ("data-format", str, "Layout of data: NXC (channels last) or NCX.  [default: NXC]"),
    (
        "filter-format",
        str,
        "Layout of the filter: XIO, OIX, IOX, XOI, and OXI or, for ConvTranspose, IXO.  [default: XIO]",
    ),
    ("weights-format", str, "New name of --filter-format."),
    ("filter-shape", INTS, "Shape of the filter's gradient, in --filter-format."),
    ("weights-shape", INTS, "New name of --filter-shape."),
    ("output-shape", INTS, "Shape of the input's gradient, in --data-format."),
    ("dst-shape", INTS, "New name of --output-shape."),
]
_NAMES = [name.replace("-", "_") for name, _, _ in _ATTRIBUTES]

Command = Callable[..., Any]


def attribute_options(command: Command) -> Command:
    """Add an option for each attribute that any operator has."""
    for name, kind, text in reversed(_ATTRIBUTES):
        command = click.option(f"--{name}", type=kind, help=text, panel="Attributes")(command)
    return command


def operator_options(command: Command) -> Command:
    """Add the argument OPERATOR, and its attributes."""
    command = attribute_options(command)
    return click.argument("operator", metavar="OPERATOR", type=Choice(OPERATORS))(command)


def compile_options(command: Command) -> Command:
    """Add --target and --schedule."""
    command = click.option("--schedule", metavar="NAME", help="Force a schedule by its name.")(command)
    return click.option("--target", default=DEFAULT, show_default=True, help="What to compile for.")(command)


def shapes_option(required: bool) -> Callable[[Command], Command]:
    """Add --shapes."""
    return click.option("--shapes", type=INTS, nargs=2, required=required, help="Shapes of the two inputs.")


def dtype_option(command: Command) -> Command:
    """Add --dtype, None where it is not given."""
    return click.option("--dtype", type=Choice(DTYPES), help="Type of all tensors.")(command)


_SELECTION = (
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        callback=lambda context, option, dtypes: dtypes or None,
        type=Choice(DTYPES),
        help="Type that overrides the layers' own (f32 if a file names none); repeatable.",
    ),
    click.option("--only", type=Choice(KINDS), help="Only one gradient of each layer, or only its forward."),
    click.option("--layer", "substring", default="", metavar="TEXT", help="Only layers whose names contain this."),
    click.option("--batch", type=click.IntRange(1), help="Batch size that overrides the layers' own."),
)


def selection_options(command: Command) -> Command:
    """Add what chooses among the gradients of layers: --dtype as `dtypes`, None where it is not given, --only, --layer
    as `substring`, --batch.
    """
    for option in reversed(_SELECTION):
        command = option(command)
    return command


def layout_options(command: Command) -> Command:
    """Add --data-format and --filter-format of the tensors of layers."""
    command = click.option(
        "--filter-format", type=Choice(FILTER_FORMATS), help="Layout of filters.  [default: XIO, or OIX with NCX]"
    )(command)
    return click.option(
        "--data-format", default="NXC", show_default=True, type=Choice(DATA_FORMATS), help="Layout of data."
    )(command)


def make_operator(name: str, options: Mapping[str, Any], rank: int) -> Compiled:
    """The operator with the attributes among a command's options; strides and dilations are ones by default."""
    ones = (1,) * max(rank, 1)
    attributes = {"strides": ones, "dilations": ones}
    attributes |= {option: options[option] for option in _NAMES if options[option] is not None}
    kind: type[Compiled] = getattr(tvmconvgrad, name)
    with user_errors():
        return kind(**attributes)
