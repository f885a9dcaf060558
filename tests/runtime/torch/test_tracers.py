"""PyTorch's tracers, modes and compiler: they see no call, and are not fooled by one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

from tests.runtime.torch.ways import WAYS, Call, calls, tensors  # noqa: E402

__all__ = ["calls"]


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
