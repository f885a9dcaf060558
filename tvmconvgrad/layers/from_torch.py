"""The layers of a PyTorch model: the convolutions that one forward pass calls, named by the modules that call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmconvgrad.layers.layer import Layer
from tvmconvgrad.spec.values import Shape, parse_ints, show

if TYPE_CHECKING:
    import torch

# the parameters of PyTorch's functions, in order; a rank of 1 to 3 stands behind the name
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


class ModelFailed(ValueError):
    """A model's forward pass raised; its text says what."""


def layers_of(model: torch.nn.Module, *input_shapes: Sequence[int]) -> list[Layer]:
    """The distinct layers that a forward pass on f32 inputs of these shapes goes through, in its order.

    Every call of torch.conv1d to conv3d and conv_transpose1d to conv_transpose3d counts, whether a module of nn or a
    function makes it, in the mode (train or eval) that the model is in. A layer has the name of the innermost module
    that calls the first one of its shapes, and the number of all in `count`. Where a module pads by anything but zeros
    it does so before: the layer is a convolution without pads of the padded input.

    The forward pass runs on PyTorch's meta device, which computes shapes alone; where the model does not go through
    there, on zeros. Raises TypeError for what is no module or no shape, ModelFailed where the forward pass raises, and
    ValueError where it calls no convolution.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {show(model)} of type {type(model).__name__}, expected a torch.nn.Module")
    shapes = [parse_ints(f"input_shapes[{place}]", shape, low=1) for place, shape in enumerate(input_shapes)]
    with torch.no_grad():
        try:
            found = _recorded(model, lambda: _forward_on_meta(model, shapes))
        except Exception:  # whatever a model does not do without values; if it is its own error, it comes again
            found = _recorded(model, lambda: _forward(model, shapes))
    if not found:
        raise ValueError(f"model: the forward pass of {type(model).__name__} calls no convolution")
    return _distinct(found)


def _forward_on_meta(model: torch.nn.Module, shapes: Sequence[Shape]) -> None:
    import torch

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shadows = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    torch.func.functional_call(model, shadows, tuple(torch.empty(shape, device="meta") for shape in shapes))


def _forward(model: torch.nn.Module, shapes: Sequence[Shape]) -> None:
    import torch

    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    # running means and the like change in copies; lazy ones have no values yet
    copies = {n: b.clone() for n, b in model.named_buffers() if not torch.nn.parameter.is_lazy(b)}
    try:
        torch.func.functional_call(model, copies, tuple(torch.zeros(shape, device=device) for shape in shapes))
    except Exception as reason:
        given = " and ".join(str(shape) for shape in shapes) or "nothing"
        what = f"{type(reason).__name__}: {reason}"
        raise ModelFailed(f"model: forward of {type(model).__name__} on {given} raised {what}") from reason


def _recorded(model: torch.nn.Module, forward: Callable[[], None]) -> list[Layer]:
    """The layer of every convolution that a forward pass calls."""
    found: list[Layer] = []
    with _names(model) as names, _watch(lambda called: found.append(_layer(names[-1], called))):
        forward()
    return found


@contextmanager
def _names(model: torch.nn.Module) -> Iterator[list[str]]:
    """The names of the modules whose forward runs, the innermost last."""
    running = [type(model).__name__]

    def watch(name: str, module: Any) -> list[Any]:
        enter = module.register_forward_pre_hook(lambda *_: running.append(name))
        leave = module.register_forward_hook(lambda *_: running.pop() and None, always_call=True)
        return [enter, leave]

    handles = [handle for name, module in model.named_modules() if name for handle in watch(name, module)]
    try:
        yield running
    finally:
        for handle in handles:
            handle.remove()


def _watch(note: Callable[[dict[str, Any]], None]) -> Any:
    """A context in which each convolution that is called is noted: its arguments by name, `rank` and `transposed`."""
    import torch
    from torch.overrides import TorchFunctionMode

    functions = {getattr(torch, f"conv{rank}d"): (rank, False, _CONV) for rank in (1, 2, 3)}
    functions |= {getattr(torch, f"conv_transpose{rank}d"): (rank, True, _TRANSPOSED) for rank in (1, 2, 3)}

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            result = function(*arguments, **(named or {}))
            if function in functions:
                rank, transposed, names = functions[function]
                note({**dict(zip(names, arguments)), **(named or {}), "rank": rank, "transposed": transposed})
            return result

    return Watch()


def _layer(name: str, called: dict[str, Any]) -> Layer:
    rank, transposed, given = called["rank"], called["transposed"], called["input"]
    kernel, groups = tuple(called["weight"].shape[2:]), called.get("groups", 1)
    dilations = _per_axis(called.get("dilation", 1), rank)
    begin, end = _pads(called.get("padding", 0), kernel, dilations)
    filters = called["weight"].shape[1] * groups if transposed else called["weight"].shape[0]
    return Layer(
        name=name if name.isprintable() else repr(name),
        op="ConvTranspose" if transposed else "Convolution",
        batch=given.shape[0] if given.dim() == rank + 2 else 1,  # without a batch it has one axis less
        channels=given.shape[-rank - 1],
        filters=filters,
        input_size=tuple(given.shape[-rank:]),
        kernel=kernel,
        strides=_per_axis(called.get("stride", 1), rank),
        dilations=dilations,
        pads_begin=begin,
        pads_end=end,
        groups=groups,
        output_padding=_per_axis(called.get("output_padding", 0), rank),
    )


def _per_axis(value: Any, rank: int) -> Shape:
    """An int for all axes, or one for each, of which PyTorch takes a single one for all, too."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def _pads(padding: Any, kernel: Shape, dilations: Shape) -> tuple[Shape, Shape]:
    """Pads at the beginning and the end of each axis; of an odd sum "same" puts more at the end."""
    if padding == "same":
        sums = [(k - 1) * d for k, d in zip(kernel, dilations)]
        return tuple(pad // 2 for pad in sums), tuple(pad - pad // 2 for pad in sums)
    pads = _per_axis(0 if padding == "valid" else padding, len(kernel))
    return pads, pads


def _distinct(layers: Sequence[Layer]) -> list[Layer]:
    """One of each shape with the number of all; a module that is called with several shapes gives several names."""
    shapes: dict[Layer, list[Layer]] = {}
    for layer in layers:
        shapes.setdefault(replace(layer, name="-"), []).append(layer)
    names: dict[str, int] = {}
    found = []
    for same in shapes.values():
        name = same[0].name
        names[name] = names.get(name, 0) + 1
        again = f"#{names[name]}" if names[name] > 1 else ""
        found.append(replace(same[0], name=f"{name}{again}", count=len(same)))
    return found
