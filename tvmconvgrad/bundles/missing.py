"""How to build a kernel that is missing: a file of layers, and a command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from tvmconvgrad.layers.layer import Layer, kind_of
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.pads import tap_extent

_FILE = "missing.json"


def how_to_build(problem: Problem, targets: Sequence[str]) -> str:
    """What to save and which command to run; for an operator that no layer has as a gradient, that there is none."""
    layer = layer_of(problem)
    if layer is None:
        return (
            "No layer has it as its gradient: it can only be built by calling the operator where building is allowed."
        )
    content = json.dumps({"layers": [_shortest(layer)]})
    return f"To build it, save this as {_FILE}:\n{content}\nand run:\n{command(problem, targets)}"


def command(problem: Problem, targets: Sequence[str]) -> str:
    """The command line that builds a bundle of the one kernel."""
    words = ["tvmconvgrad", "build", _FILE, "--only", kind_of(problem), "--dtype", problem.dtype]
    words += ["--data-format", problem.data_format, "--filter-format", problem.filter_format]
    for name, value in problem.epilogue.words:
        option = f"--{name.replace('_', '-')}"
        words += [option, value] if name == "result_dtype" else [option]
    words += [word for target in targets for word in ("--target", target)]
    return shlex.join([*words, "-o", "missing"])


def layer_of(problem: Problem) -> Layer | None:
    """The layer of which a problem is a gradient; None where there is none."""
    g = problem.geometry
    small, big = {"channels": g.o, "input_size": g.y}, {"channels": g.c, "input_size": g.x}
    given: dict[str, Any] = {**(small if problem.transposed else big), "batch": g.batch, "kernel": g.k}
    given |= {name: getattr(g, name) for name in ("strides", "dilations", "pads_begin", "pads_end", "groups")}
    if problem.transposed:
        axes = zip(g.x, g.y, g.k, g.strides, g.dilations, g.pads_begin, g.pads_end)
        given["output_padding"] = tuple(x - (s * (y - 1) + tap_extent(k, d) - b - e) for x, y, k, s, d, b, e in axes)
    try:
        layer = Layer(
            name="missing", op="ConvTranspose" if problem.transposed else "Convolution",
            filters=g.c if problem.transposed else g.o, **given,
        )  # fmt: skip
        gradients = layer.gradients(problem.data_format, problem.filter_format, problem.dtype)
    except (ValueError, TypeError):
        return None
    plain = next(one for one in gradients if one.kind == kind_of(problem))
    same = replace(plain, epilogue=problem.epilogue)
    return layer if same.problem.key == problem.key else None


def _shortest(layer: Layer) -> dict[str, Any]:
    """The fields that are not as if they were left out."""
    ones, zeros = (1,) * layer.rank, (0,) * layer.rank
    plain = {"strides": ones, "dilations": ones, "groups": 1, "count": 1, "op": "Convolution", "dtype": "f32"}
    plain |= dict.fromkeys(("pads_begin", "pads_end", "output_padding"), zeros)
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return {name: value for name, value in values.items() if plain.get(name) != value}
