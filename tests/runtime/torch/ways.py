"""All ways on which a call of an operator may go with PyTorch's tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, layer

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

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
    from tvmconvgrad.machines.host import host_architecture
    from tvmconvgrad.machines.targets import parse_target
    from tvmconvgrad.runtime.kernel import Kernel

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
