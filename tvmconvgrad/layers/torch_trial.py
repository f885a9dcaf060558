"""A forward pass of a PyTorch model that leaves no trace: on copies of what the model holds, then forgotten."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode

from tvmconvgrad.layers.torch_calls import UNKNOWN, Call, Names, Record
from tvmconvgrad.spec.values import Shape

Input = Shape | torch.Tensor


class NeedsValues(Exception):
    """What a model computes depends on values: it does not tell what it would compute by going on without them."""


def calls_on_shapes(model: torch.nn.Module, inputs: Sequence[Input]) -> list[Call]:
    """The convolutions of a forward pass that computes shapes alone. Raises whatever the model does without values."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    record = _record(model, inputs, fake)
    if record.needs_values:
        raise NeedsValues
    return record.calls


def calls_on_values(model: torch.nn.Module, inputs: Sequence[Input]) -> list[Call]:
    """The convolutions of a forward pass. Raises whatever the model raises."""
    return _record(model, inputs, None).calls


def _record(model: torch.nn.Module, inputs: Sequence[Input], fake: FakeTensorMode | None) -> Record:
    dtype, device = _most_common_type(model), _device(model)
    record = Record()
    with _global_state_kept(), _on_copies(model, fake) as stand_in, ExitStack() as modes:
        names = Names(stand_in)
        if fake is not None:
            modes.enter_context(fake)
        given = [_made(one, dtype, device, fake) for one in inputs]
        modes.enter_context(names.watched(record))
        stand_in(*given)
    return record


def _made(given: Input, dtype: torch.dtype, device: torch.device, fake: FakeTensorMode | None) -> torch.Tensor:
    if not isinstance(given, torch.Tensor):
        return torch.zeros(given, dtype=dtype, device=device)
    if given.is_meta:
        return torch.zeros(given.shape, dtype=given.dtype, device=device)
    there = given.detach().to(device)
    made = copy.deepcopy(there) if fake is None else fake.from_tensor(there)
    return made.requires_grad_(given.requires_grad)


def _most_common_type(model: torch.nn.Module) -> torch.dtype:
    """The type of most of the parameters' elements, f32 without any."""
    elements: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            elements[parameter.dtype] += 1 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()
    return elements.most_common(1)[0][0] if elements else torch.float32


def _device(model: torch.nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def _on_copies(model: torch.nn.Module, fake: FakeTensorMode | None) -> Iterator[torch.nn.Module]:
    """The model, whose modules hold copies of all that they held, and afterwards what they held.

    Modules stay the objects that they are, so that functions which know them go on to. A part that is scripted or
    traced keeps its state in C++: it is copied as a whole. What cannot be copied, a lock or a file, is shared. With
    `fake` parameters and buffers become tensors without values.
    """
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    held = [(module, type(module), vars(module)) for module in modules]
    memo: dict[int, Any] = {id(module): module for module in modules}
    if fake is not None:
        memo |= {id(tensor): fake.from_tensor(_leaf(tensor)) for tensor in _tensors(modules)}
    with _AnyTensorCopied():
        copies = [{name: _copied(value, memo) for name, value in fields.items()} for _, _, fields in held]
        stand_in = _copied(model, memo)
    try:
        for module, fields in zip(modules, copies):
            object.__setattr__(module, "__dict__", fields)
        yield stand_in
    finally:
        for module, kind, fields in held:
            object.__setattr__(module, "__class__", kind)  # lazy ones become others
            object.__setattr__(module, "__dict__", fields)


def _tensors(modules: Sequence[torch.nn.Module]) -> Iterator[torch.Tensor]:
    """Parameters and buffers that have values."""
    for module in modules:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and not torch.nn.parameter.is_lazy(tensor):
                yield tensor


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, in which what cannot be copied is shared."""
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # whatever a class of the user's raises
        pass
    if not isinstance(value, (dict, list)):
        return value
    memo[id(value)] = copied = copy.copy(value)
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        copied[key] = _copied(entry, memo)
    return copied


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_leaf else tensor.detach()


class _AnyTensorCopied(TorchFunctionMode):
    """copy.deepcopy takes what PyTorch refuses: computed tensors, such as weight_norm's, and lazy buffers."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function is torch.Tensor.__deepcopy__:
            tensor, memo = arguments
            if torch.nn.parameter.is_lazy(tensor):
                kind: Any = type(tensor)
                return kind(tensor.requires_grad, tensor.data.device, tensor.data.dtype)
            arguments = (_leaf(tensor), memo)
        return function(*arguments, **(named or {}))


@contextmanager
def _global_state_kept() -> Iterator[None]:
    """Random numbers and the grad mode are afterwards as before; nothing is optimised for this one pass."""
    kept = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    jit: Any = torch.jit
    devices = range(cuda.device_count()) if cuda.is_initialized() else ()
    try:
        with (
            torch.random.fork_rng(devices),
            torch.set_grad_enabled(torch.is_grad_enabled()),
            jit.optimized_execution(False),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])


def unseen_calls(model: torch.nn.Module) -> Iterator[Call]:
    """The convolutions of scripted parts that torch.jit.optimize_for_inference hides from PyTorch's dispatcher."""
    hiding: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "forward"):
            if any(not outer or name.startswith(f"{outer}.") for outer in hiding):
                continue  # what it calls is in the graph of the outer one
            hiding.append(name)
            for kind in _kinds(module.inlined_graph):
                if kind.startswith("prim::") and "conv" in kind:
                    yield Call(name, kind, UNKNOWN, None)


def _kinds(graph: Any) -> Iterator[str]:
    for node in graph.nodes():
        yield node.kind()
        for block in node.blocks():
            yield from _kinds(block)
