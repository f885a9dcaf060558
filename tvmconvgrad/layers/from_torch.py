"""The layers of a PyTorch model: the convolutions of one forward pass, named by the modules that call them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.layers.torch_calls import Call, Convolution
from tvmconvgrad.layers.torch_trial import Input, calls_on_shapes, calls_on_values, unseen_calls
from tvmconvgrad.spec.dtypes import DTYPES, parse_dtype
from tvmconvgrad.spec.values import counted, parse_ints, show

MOST_AXES = 64
"""Of a tensor, by PyTorch."""


class ModelFailed(ValueError):
    """A model's forward pass raised; its text says what."""


class LayersLeftOut(UserWarning):
    """A model computes convolutions that are no layers; its text says which, and why."""


@dataclass(frozen=True)
class LeftOut:
    """Convolutions of a model that no Layer describes."""

    name: str
    """The module's."""
    reason: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}: {counted(self.count, 'call')} of {self.reason}"


@dataclass(frozen=True)
class Found:
    """What a model computes: distinct layers, in the order of its forward pass, and the convolutions that are none."""

    layers: list[Layer]
    left_out: list[LeftOut]


def layers_of(model: torch.nn.Module, *inputs: Sequence[int] | torch.Tensor) -> list[Layer]:
    """The layers that find_layers finds; the warning LayersLeftOut says which convolutions are none."""
    found = find_layers(model, *inputs)
    if found.left_out:
        warnings.warn("; ".join(map(str, found.left_out)), LayersLeftOut, stacklevel=2)
    return found.layers


def find_layers(model: torch.nn.Module, *inputs: Sequence[int] | torch.Tensor) -> Found:
    """The distinct layers that a forward pass on these inputs goes through, in its order.

    An input is a shape, for zeros of the type that most of the parameters have, or a tensor, of which a copy is made on
    the model's device; one on the meta device stands for zeros. Every convolution that PyTorch's dispatcher is asked
    for counts, whoever asks: a module of nn, a function, a part that is traced, scripted, exported or compiled; in the
    mode (train or eval) that the model is in, and in the type that it has there, also under autocast. A layer has the
    name of the innermost module that calls the first one of its shapes and type, and the number of all in `count`.
    Where a module pads by anything but zeros it does so before: the layer is a convolution without pads of the padded
    input. Where there is no batch, or an empty one, the layer's is 1.

    The forward pass runs on shapes alone; where the model does not go through there, on the inputs' values. The model
    is afterwards as it was, and so are random numbers: the pass runs on copies of all that its modules hold.

    What is no layer is in `left_out`: other types than f32, f16 and bf16, quantised convolutions and others that the
    dispatcher is not asked for in the usual terms. What an operator of the user's own computes inside is not seen.

    Raises TypeError for what is no module, no shape and no tensor, ModelFailed where the forward pass raises, and
    ValueError where it finds no layer.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {show(model)} of type {type(model).__name__}, expected a torch.nn.Module")
    given = [_input(place, one) for place, one in enumerate(inputs)]
    calls = [*_calls(model, given), *unseen_calls(model)]
    layers, left_out = _sorted(calls, type(model).__name__)
    if not layers:
        raise ValueError(f"model: the forward pass of {type(model).__name__} calls no convolution{_but(left_out)}")
    return Found(layers, left_out)


def _input(place: int, given: Sequence[int] | torch.Tensor) -> Input:
    if isinstance(given, torch.Tensor):
        return given
    return parse_ints(f"input_shapes[{place}]", given, low=0, most=MOST_AXES)


def _calls(model: torch.nn.Module, inputs: Sequence[Input]) -> list[Call]:
    try:
        return calls_on_shapes(model, inputs)
    except (Exception, SystemExit):  # whatever a model does not do without values; its own errors come again
        pass
    try:
        return calls_on_values(model, inputs)
    except (Exception, SystemExit) as reason:  # the user's own code: it may raise anything
        shapes = " and ".join(str(tuple(getattr(one, "shape", one))) for one in inputs) or "nothing"
        what = f"{type(reason).__name__}: {reason}"
        raise ModelFailed(f"model: forward of {type(model).__name__} on {shapes} raised {what}") from reason


def _sorted(calls: Iterable[Call], root: str) -> tuple[list[Layer], list[LeftOut]]:
    """Layers, one of each shape and type, and what is none."""
    same: dict[Layer, list[str]] = {}
    others: Counter[tuple[str, str]] = Counter()
    for call in calls:
        name = call.module or root
        name = name if name.isprintable() else repr(name)
        layer = _layer(call)
        if isinstance(layer, str):
            others[name, layer] += 1
        else:
            same.setdefault(layer, []).append(name)
    layers: dict[str, Layer] = {}
    for layer, names in same.items():
        name = _unused(names[0], layers)
        layers[name] = replace(layer, name=name, count=len(names))
    return list(layers.values()), [LeftOut(*about, count) for about, count in others.items()]


def _unused(name: str, used: Iterable[str]) -> str:
    """The name, or where it is used the first of name#2, name#3 that is not: a module may be called on many shapes."""
    number, found = 1, name
    while found in used:
        number += 1
        found = f"{name}#{number}"
    return found


def _layer(call: Call) -> Layer | str:
    """The layer, without a name; or what is called, and why it is none."""
    if call.convolution is None:
        return f"{call.operator} on {call.dtype}, which no layer describes"
    try:
        dtype = parse_dtype(call.dtype)
    except ValueError:
        return f"{call.operator} on {call.dtype}, expected {', '.join(DTYPES[:-1])} or {DTYPES[-1]}"
    try:
        return _described(call.convolution, dtype)
    except ValueError as reason:
        return f"{call.operator}, which no layer describes: {reason}"


def _described(found: Convolution, dtype: str) -> Layer:
    filters = found.weight[1] * found.groups if found.transposed else found.weight[0]
    return Layer(
        name="-",
        op="ConvTranspose" if found.transposed else "Convolution",
        batch=found.source[0] or 1,
        channels=found.source[1],
        filters=filters,
        input_size=found.source[2:],
        kernel=found.weight[2:],
        strides=found.strides,
        dilations=found.dilations,
        pads_begin=found.pads_begin,
        pads_end=found.pads_end,
        groups=found.groups,
        output_padding=found.output_padding,
        dtype=dtype,
    )


def _but(left_out: Sequence[LeftOut]) -> str:
    return f" that is a layer: {'; '.join(map(str, left_out))}" if left_out else ""
