"""The convolutions that a PyTorch program computes, as PyTorch's dispatcher sees them."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from tvmconvgrad.spec.values import Shape

# words of operators' names: "convert" is none of a convolution, a gradient no layer, and packing computes nothing
_CONVOLUTION, _NONE = re.compile("conv(?!ert)"), re.compile("backward|prepack|unpack|weight")
_NEEDED = {"weight", "stride", "padding"}

UNKNOWN = "unknown types"


@dataclass(frozen=True)
class Call:
    """An operator of PyTorch's that computes a convolution, and the module that called it."""

    module: str
    """Its name in the model, "" for the model itself."""
    operator: str
    """For example "aten::convolution"."""
    dtype: str
    """The input's type in PyTorch's words, for example "float32", or UNKNOWN."""
    convolution: Convolution | None
    """None where the operator is none whose arguments are known."""


@dataclass(frozen=True)
class Convolution:
    """The numbers of one convolution, an entry for each spatial axis."""

    transposed: bool
    source: Shape
    weight: Shape
    strides: Shape
    dilations: Shape
    pads_begin: Shape
    pads_end: Shape
    groups: int
    output_padding: Shape


@dataclass
class Record:
    """What a forward pass computes."""

    calls: list[Call] = field(default_factory=list)
    needs_values: bool = False
    """Whether an operator raised, or chooses by values what it calls."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each convolution that this thread computes in this context, whoever calls it.

    PyTorch's dispatcher brings them here: modules and functions, and what is traced, scripted, exported or compiled.
    """

    supports_higher_order_operators = True

    def __init__(self, names: Names, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names, self._record = names, record
        self._padded: dict[int, tuple[weakref.ref[torch.Tensor], Shape, Shape]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        """Call the operator, and note it where it is a convolution."""
        named = named or {}
        try:
            if isinstance(function, HigherOrderOperator):  # such as torch.cond
                self._record.needs_values = True
                return function(*map(self._watched, arguments), **named)
            if _is_whole(function):
                with self:
                    return function.decompose(*arguments, **named)
            result = function(*arguments, **named)
        except Exception:
            self._record.needs_values = True
            raise
        if isinstance(function, OpOverload):
            given = _by_name(function, arguments, named)
            if function is torch.ops.aten.constant_pad_nd.default:
                self._note_pads(given, result)
            elif _convolves(_name(function), result):
                self._note(_name(function), given)
        return result

    def _watched(self, argument: Any) -> Any:
        if not callable(argument):
            return argument

        def call(*arguments: Any) -> Any:
            with self:
                return argument(*arguments)

        return call

    def _note(self, operator: str, given: dict[str, Any]) -> None:
        source = given.get("input", given.get("self"))
        if not isinstance(source, torch.Tensor):
            source = next((value for value in given.values() if isinstance(value, torch.Tensor)), None)
        weight, numbers = given.get("weight"), None
        if source is not None and isinstance(weight, torch.Tensor) and given.keys() >= _NEEDED:
            numbers = self._with_pads_of_same(source, _numbers(operator, source, weight, given))
        dtype = UNKNOWN if source is None else str(source.dtype).removeprefix("torch.")
        self._record.calls.append(Call(self._names.of(weight), operator, dtype, numbers))

    def _note_pads(self, given: dict[str, Any], result: torch.Tensor) -> None:
        """Remember what zeros were put at the ends of a tensor's axes."""
        pads = [int(pad) for pad in given["pad"]]
        if given["value"] == 0 and not any(pads[::2]):
            shape = tuple(given["self"].shape)
            if len(pads) == 2 * (len(shape) - 2):
                self._padded[id(result)] = weakref.ref(result), shape, tuple(pads[:0:-2])  # the last axis is first

    def _with_pads_of_same(self, source: torch.Tensor, numbers: Convolution) -> Convolution:
        """The convolution that padding="same" asked for; PyTorch puts an odd sum's last zeros at the end before it."""
        padded, shape, ends = self._padded.get(id(source), (lambda: None, (), ()))
        if padded() is not source or numbers.transposed or set(numbers.strides) != {1}:
            return numbers
        pads_end = tuple(pad + end for pad, end in zip(numbers.pads_end, ends))
        taps = zip(numbers.pads_begin, pads_end, numbers.weight[2:], numbers.dilations)
        if set(ends) <= {0, 1} and all(begin + end == (k - 1) * d for begin, end, k, d in taps):
            return replace(numbers, source=shape, pads_end=pads_end)
        return numbers


def _is_whole(function: Any) -> bool:
    """Whether it is conv2d or the like, of which the dispatcher shows the parts, but not in inference mode."""
    return isinstance(function, OpOverload) and bool(_CONVOLUTION.search(_name(function))) and function._can_decompose()


def _name(function: OpOverload[..., Any]) -> str:
    return str(function._schema.name)


def _convolves(operator: str, result: object) -> bool:
    name = operator.split("::")[1]
    return bool(_CONVOLUTION.search(name)) and not _NONE.search(name) and isinstance(result, torch.Tensor)


def _by_name(function: OpOverload[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    known = function._schema.arguments
    defaults = {one.name: one.default_value for one in known if one.has_default_value()}
    return {**defaults, **{one.name: value for one, value in zip(known, arguments)}, **named}


def _numbers(operator: str, source: torch.Tensor, filters: torch.Tensor, given: dict[str, Any]) -> Convolution:
    weight, shape = _shape(filters.shape), _shape(source.shape)
    rank = len(weight) - 2
    transposed = bool(given.get("transposed", "transpose" in operator))
    pads = _per_axis(given["padding"], rank)
    return Convolution(
        transposed,
        shape,
        weight,
        _per_axis(given["stride"], rank),
        _per_axis(given.get("dilation", 1), rank),
        pads,
        pads,
        # the operators of depthwise convolutions have no such argument
        int(given.get("groups", 1 if transposed else shape[1] // max(weight[1], 1) or 1)),
        _per_axis(given.get("output_padding", 0) if transposed else 0, rank),
    )


def _shape(sizes: Sequence[Any]) -> Shape:
    return tuple(int(size) for size in sizes)


def _per_axis(given: Any, rank: int) -> Shape:
    """One for each axis; PyTorch takes a single one for all, too."""
    values = _shape(given if isinstance(given, (list, tuple)) else [given])
    return values * rank if len(values) == 1 else values


class Names:
    """The names of a model's modules, and which of them are running."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        # the tensors are kept so that their objects, and with them their ids, stay
        self._tensors = [*model.named_parameters(), *model.named_buffers()]
        self._owners = {id(tensor): name.rpartition(".")[0] for name, tensor in self._tensors}
        self._here = _Here()

    def of(self, weight: object) -> str:
        """The innermost running module, or its part that the weight belongs to: PyTorch itself runs scripted parts."""
        running = self._here.running[-1] if self._here.running else ""
        owner = self._owners.get(id(weight), running)
        return owner if not running or owner.startswith(f"{running}.") else running

    @contextmanager
    def watched(self, record: Record) -> Iterator[None]:
        """Note what is computed, in this context and in threads of the model's own while one of its modules runs there.

        The hooks are PyTorch's for all modules: no module is changed.
        """
        mine = threading.get_ident()

        def enter(module: Any, _: Any) -> None:
            if id(module) in self._names:
                if not self._here.running and threading.get_ident() != mine:
                    self._here.watch = Watch(self, record)
                    self._here.watch.__enter__()
                self._here.running.append(self._names[id(module)])

        def leave(module: Any, *_: Any) -> None:
            if id(module) in self._names and self._here.running:  # empty where it ran before, in another thread
                self._here.running.pop()
                if not self._here.running and threading.get_ident() != mine:
                    self._here.watch.__exit__(None, None, None)

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        try:
            with Watch(self, record):
                yield
        finally:
            for handle in handles:
                handle.remove()


class _Here(threading.local):
    """Of one thread: the names of the modules that run, the innermost last, and what watches them."""

    watch: Any = None

    def __init__(self) -> None:
        self.running: list[str] = []
