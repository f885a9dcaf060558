"""PyTorch's autograd, tracers and transformations: nothing is lost without a word, on every way of a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, layer
from tests.support.convolution import Array

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")
from torch.autograd import forward_ad  # noqa: E402

Call = Callable[..., Any]
NAMES = ("input_forward", "output_delta")


def tensors() -> tuple[Any, Any, Any]:
    _, inputs, want = layer(FILTERS)
    one, two, result = (torch.from_numpy(np.array(array)) for array in (*inputs, want))
    return one, two, result


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """All ways that a call may go."""
    from tvmconvgrad.deploy.bundle import build_bundle, make_plan
    from tvmconvgrad.layers.layer import Layer
    from tvmconvgrad.runtime.kernel import Kernel
    from tvmconvgrad.targets import host_architecture, parse_target

    kernel = layer(FILTERS)[0]
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    folder: Path = tmp_path_factory.mktemp("autograd") / "bundle"
    one = Layer(
        name="one", batch=2, channels=3, filters=4, input_size=(5, 4), kernel=(3, 3), pads_begin=(1, 1), pads_end=(1, 1)
    )
    plan = make_plan("watched", one.gradients(dtype="f32"), [parse_target()], host_architecture(), static=False)
    build_bundle(plan, folder, lambda what, done, total: None)
    bundled = cg.load(folder).find(kernel.problem)
    assert bundled is not None
    first, second, want = tensors()
    careful = Kernel(kernel.problem, kernel.target, kernel.schedule, kernel.workspace_bytes, kernel.function)
    careful.__dict__.update(_quick=None, _quick_with_new_result=None)
    zero = Kernel(kernel.problem, kernel.target, "zero()", 0, None)
    found = {"op": op, "op by name": functools.partial(by_name, op), "kernel": kernel, "bundle": bundled}
    found |= {
        "careful": careful,
        "zero": zero,
        "first call": lambda *rest, **how: type(op)(**FILTERS.attributes)(*rest, **how),
    }
    for name, call in found.items():
        assert torch.equal(call(first, second), want) or name == "zero"
    return found


def by_name(op: Call, first: Any, second: Any, **how: Any) -> Any:
    return op(output_delta=second, input_forward=first, target="llvm -mcpu=native", **how)


WAYS = pytest.mark.parametrize("way", ["op", "op by name", "kernel", "bundle", "careful", "zero", "first call"])
DENSE_OR_NOT: dict[str, Callable[[Any], Any]] = {
    "dense": lambda like: torch.zeros(like.shape),
    "strided": lambda like: torch.zeros([2 * size for size in like.shape])[
        tuple(slice(None, None, 2) for _ in like.shape)
    ],
    "a view": lambda like: torch.zeros(3, *like.shape)[1],
    "off by an element": lambda like: torch.zeros(like.numel() + 1)[1:].view(like.shape),
    "negative": lambda like: torch._neg_view(torch.zeros(like.shape)),
}


@WAYS
@pytest.mark.parametrize("form", DENSE_OR_NOT)
def test_backward_notices_that_a_result_was_written_over_what_it_kept(
    form: str, way: str, calls: dict[str, Call]
) -> None:
    first, second, want = tensors()
    for write in (lambda out: calls[way](first, second, out=out), lambda out: torch.add(out, 1, out=out)):
        weights, out = torch.ones(want.shape, requires_grad=True), DENSE_OR_NOT[form](want)
        loss = (weights * out).sum()
        write(out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


@WAYS
def test_views_of_a_result_share_its_version(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    base = torch.zeros(2, *want.shape)
    view, detached = base[0], base.detach()
    versions = [each._version for each in (base, view, detached)]
    calls[way](first, second, out=base[1])
    assert all(each._version > before for each, before in zip((base, view, detached), versions, strict=True))
    assert first._version == second._version == 0


@WAYS
@pytest.mark.parametrize("place", range(2))
def test_inputs_that_require_grad(place: int, way: str, calls: dict[str, Call]) -> None:
    plain = tensors()
    want = calls[way](*plain[:2])
    for watched in (
        plain[place].clone().requires_grad_(),
        torch.nn.Parameter(plain[place]),
        plain[place].clone().requires_grad_() * 1,
    ):
        given = [watched if i == place else each for i, each in enumerate(plain[:2])]
        for out in (None, torch.zeros(want.shape), np.zeros(want.shape, np.float32)):
            with pytest.raises(
                ValueError, match=rf"^{NAMES[place]}: requires grad.*{NAMES[place]}\.detach\(\).*no_grad"
            ):
                calls[way](*given, out=out)
            assert out is None or not out.any()
        with torch.no_grad():
            assert torch.equal(calls[way](*given), want)
        with torch.inference_mode():
            assert torch.equal(calls[way](*given), want)
        given[place] = watched.detach()
        assert torch.equal(calls[way](*given), want)


@WAYS
def test_inside_of_a_backward(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)

    class Gradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: Any) -> Any:
            ctx.save_for_backward(given)
            return calls[way](given, second)

        @staticmethod
        def backward(ctx: Any, delta: Any) -> Any:
            (given,) = ctx.saved_tensors
            assert given.requires_grad
            assert torch.equal(calls[way](given, second), want)
            return torch.ones_like(given)

    leaf = first.clone().requires_grad_()
    Gradient.apply(leaf).sum().backward()
    assert bool((leaf.grad == 1).all())


@WAYS
def test_results_that_require_grad(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    leaf = torch.zeros(want.shape).requires_grad_()
    with torch.no_grad():
        view = leaf.view(want.shape)
    for out in (leaf, leaf * 1, view, (leaf * 1).view(want.shape), torch.nn.Parameter(torch.zeros(want.shape))):
        with pytest.raises(RuntimeError, match="requires grad"):
            torch.add(want, 1, out=out)
        with pytest.raises(ValueError, match=r"^out: requires grad"):
            calls[way](first, second, out=out)
        assert not out.detach().any()
    before = leaf._version
    with torch.no_grad():
        calls[way](first, second, out=leaf)
    assert leaf._version > before


@WAYS
def test_inference_tensors(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    with torch.inference_mode():
        inputs, out = [first.clone(), second.clone()], torch.zeros(want.shape)
        assert out.is_inference()
        assert torch.equal(calls[way](*inputs), want)
        assert calls[way](*inputs, out=out) is out
        assert torch.equal(out, want)
        normal = calls[way](first, second).clone()
        out.zero_()
    assert torch.equal(normal, want)
    assert torch.equal(calls[way](*inputs), want)
    with pytest.raises(ValueError, match=r"^out: is an inference tensor"):
        calls[way](first, second, out=out)
    assert not out.any()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        torch.add(want, 1, out=out)


@WAYS
def test_forward_mode(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(first, torch.ones_like(first))
        with pytest.raises(ValueError, match=r"^input_forward: has a forward-mode tangent"):
            calls[way](dual, second)
        with pytest.raises(ValueError, match=r"^out: has a forward-mode tangent"):
            calls[way](first, second, out=forward_ad.make_dual(torch.zeros(want.shape), want))
        assert torch.equal(calls[way](forward_ad.unpack_dual(dual).primal, second), want)
        assert torch.equal(calls[way](first, second), want)
    with pytest.raises(TypeError, match=r"^input_forward: .* without memory of its own"):
        torch.func.jvp(lambda one: calls[way](one, second), (first,), (first,))


class Overriding(torch.Tensor):
    """Does something of its own."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return 7


class Plain(torch.Tensor):
    """Does nothing of its own."""


def freed(tensor: Any, size: int = 0) -> Any:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(size)
    return tensor


def freed_view(tensor: Any) -> Any:
    memory = torch.zeros(2 * tensor.numel())
    view = memory[tensor.numel() :].view(tensor.shape)
    memory.untyped_storage().resize_(4)
    return view


ODD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "freed": (freed, "its elements need .* bytes of a storage of 0"),
    "made smaller": (lambda tensor: freed(tensor, 4), "its elements need .* bytes of a storage of 4"),
    "a view of what was made smaller": (freed_view, "its elements need .* bytes of a storage of 4"),
    "zeros without memory": (lambda tensor: torch._efficientzerotensor(tensor.shape), "without memory of its own"),
    "functional": (lambda tensor: torch._to_functional_tensor(tensor), "without memory of its own"),
    "nested": (lambda tensor: torch.nested.nested_tensor(list(tensor)), "a nested tensor has no single shape"),
    "nested and jagged": (lambda tensor: torch.nested.nested_tensor(list(tensor), layout=torch.jagged), ""),
    "on another device": (lambda tensor: tensor.to("meta"), "is on device meta"),
    "sparse": (lambda tensor: tensor.to_sparse(), "layout torch.sparse_coo"),
    "sparse by rows": (lambda tensor: tensor.flatten(1).to_sparse_csr(), "layout torch.sparse_csr"),
    "of oneDNN's layout": (lambda tensor: tensor.to_mkldnn(), "layout torch._mkldnn"),
    "overriding": (lambda tensor: tensor.as_subclass(Overriding), "is a Overriding"),
    "not there yet": (lambda tensor: torch.nn.UninitializedParameter(), "is a UninitializedParameter"),
    "complex, conjugate": (lambda tensor: tensor.to(torch.complex64).conj(), "complex64"),
}


@WAYS
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_memory(odd: str, place: int, way: str, calls: dict[str, Call]) -> None:
    given = list(tensors())
    make, words = ODD[odd]
    given[place] = make(given[place])
    name = (*NAMES, "out")[place]
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: .*{words}"):
        calls[way](given[0], given[1], out=given[2] if place == 2 else None)


@WAYS
def test_tensors_that_are_plain_after_all(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    want = calls[way](first, second)
    lazy = torch._lazy_clone(first.clone())  # of memory that is PyTorch's
    assert torch.equal(calls[way](lazy, second), want)
    assert torch.equal(calls[way](first.as_subclass(Plain), second), want)
    assert torch.equal(calls[way](first.share_memory_(), second), want)
    assert torch.equal(calls[way](torch._neg_view(-first), second), want)
    assert torch.equal(calls[way](first.to(torch.complex64).conj().real, second), want)
    before = torch.full(want.shape, 7.0)
    out = torch._lazy_clone(before)
    calls[way](first, second, out=out)
    assert torch.equal(out, want)
    assert bool((before == 7).all())  # which shared memory with `out` until now


@WAYS
def test_results_in_shared_places(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    memory = torch.zeros(want.numel() + 8)
    rows = want.shape[:-1].numel()
    for strides, ok in (
        ((0,) * 4, False),
        ((36, 12, 4, 1), True),
        ((36, 12, 3, 1), False),
        ((1, 1, 1, 1), False),
        ((12, 36, 4, 1), True),
    ):
        out = memory.as_strided(want.shape, strides)
        memory.zero_()
        places = {sum(i * s for i, s in zip(index, strides)) for index in np.ndindex(*want.shape)}
        assert ok == (len(places) == want.numel())
        if ok:
            assert torch.equal(calls[way](first, second, out=out), calls[way](first, second)), rows
        else:
            with pytest.raises(ValueError, match=r"^out: several elements share one place"):
                calls[way](first, second, out=out)
            assert not memory.any()


@WAYS
@pytest.mark.filterwarnings("ignore")
def test_tracers(way: str, calls: dict[str, Call]) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    first, second, want = tensors()
    out = torch.zeros(want.shape)
    for function in (
        lambda one, two: calls[way](one, two),
        lambda one, two: calls[way](one, two, out=out),
        lambda one, two: one.sum() + calls[way](first, second),  # constants
    ):
        with pytest.raises(ValueError, match=r"^input_forward: torch.jit.trace is at work"):
            torch.jit.trace(function, (first, second))
        for mode in ("real", "fake", "symbolic"):
            with pytest.raises((TypeError, ValueError), match=r"^input_forward: "):
                make_fx(function, tracing_mode=mode)(first, second)
    assert not out.any()
    with torch._subclasses.FakeTensorMode(), pytest.raises((TypeError, ValueError), match=r"^input_forward: "):
        calls[way](first, second)
    with pytest.raises((TypeError, ValueError), match="without memory of its own"):
        torch.func.functionalize(lambda one: calls[way](one, second))(first)
    with pytest.raises((TypeError, ValueError), match="without memory of its own"):
        torch.func.functionalize(lambda one: calls[way](first, second))(first)


@WAYS
def test_modes_of_the_user_see_nothing_and_break_nothing(way: str, calls: dict[str, Call]) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Through(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    first, second, want = tensors()
    want = calls[way](first, second)
    for mode in (Through(), FlopCounterMode(display=False), torch.device("meta")):
        with mode:
            assert torch.equal(calls[way](first, second), want)
    for vmapped in (
        lambda one: calls[way](first, second) + one,
        lambda one: calls[way](first, second, out=want) * 1 + one,
    ):
        assert torch.equal(torch.vmap(vmapped)(torch.zeros(2))[1], want)
    with pytest.raises(TypeError, match=r"^input_forward: .* without memory"):
        torch.vmap(lambda one: calls[way](one, second))(first[None])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["op"])
def test_compile_breaks_its_graph_there(way: str, calls: dict[str, Call]) -> None:
    first, second, want = tensors()
    torch._dynamo.reset()
    compiled = torch.compile(lambda one, two: calls[way](one + 0, two) * 2, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(first, second), want * 2)
    with pytest.raises(ValueError, match="requires grad"):
        compiled(first.clone().requires_grad_(), second)


def test_a_shape_without_memory() -> None:
    first, second, want = tensors()
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    shape = torch.tensor(tuple(want.shape), dtype=torch.int32)
    assert torch.equal(op(first, second, shape), want)
    for bad in (freed(shape), freed(shape, 4), shape.to("meta"), torch._efficientzerotensor((4,), dtype=torch.int32)):
        with pytest.raises((TypeError, ValueError), match=r"^filter_shape: "):
            op(first, second, bad)


def test_arrays_and_tensors_on_one_memory() -> None:
    """An array that is a tensor's memory has no version: what is written through it is not seen, as in PyTorch."""
    first, second, want = tensors()
    out: Array = np.zeros(want.shape, np.float32)
    assert getattr(cg, FILTERS.operator)(**FILTERS.attributes)(first, second, out=out) is out
    assert np.array_equal(out, want.numpy())
