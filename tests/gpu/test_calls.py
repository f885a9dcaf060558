"""Calls on a GPU: streams, graphs, memory of any form, and other libraries' tensors."""

from __future__ import annotations

from typing import Any

import pytest

import tvmconvgrad as cg
from tests.gpu.bundles import gradients
from tests.support.cases.layer import operator_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

NAMES = ("whole_f16_filters", "tails_f32_data", "strided_f32_filters", "depthwise_f16_data")
KERNELS = pytest.mark.parametrize("name", NAMES)
BUSY = 4096


def example(name: str) -> tuple[Any, Any, Any, Any]:
    """An operator, two inputs of random numbers, and the result that its kernel gives on the default stream."""
    gradient = gradients("nxc")[name]
    dtype = {"f32": torch.float32, "f16": torch.float16}[gradient.dtype]
    random = torch.Generator("cuda").manual_seed(7)
    inputs = [torch.randn(shape, generator=random, device="cuda").to(dtype) for shape in gradient.shapes]
    operator = operator_of(gradient)
    result = operator(*inputs)
    torch.cuda.synchronize()
    return (operator, *inputs, result)


@KERNELS
def test_it_runs_on_the_current_stream(name: str, in_use: cg.Bundle) -> None:
    op, first, second, expected = example(name)
    busy = torch.randn(BUSY, BUSY, device="cuda")
    late, out = torch.zeros_like(first), torch.zeros_like(expected)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            busy = busy @ busy * 1e-3  # until then there are zeros in the input
        late.copy_(first)
        op(late, second, out=out)
        found = out.clone()
        torch.cuda.current_stream().synchronize()
    assert torch.equal(found, expected)


@KERNELS
def test_calls_on_two_streams_share_no_workspace(name: str, in_use: cg.Bundle) -> None:
    op, first, second, expected = example(name)
    negative = op(-first, second)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found: list[list[Any]] = [[], []]
    for _ in range(30):
        for stream, sign, results in zip(streams, (1, -1), found):
            with torch.cuda.stream(stream):
                results.append(op(sign * first, second))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in found[0])
    assert all(torch.equal(result, negative) for result in found[1])


@KERNELS
def test_a_graph_records_it(name: str, in_use: cg.Bundle) -> None:
    op, first, second, expected = example(name)
    place, out = first.clone(), torch.empty_like(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op(place, second, out=out)
    for sign in (1, -1):
        place.copy_(sign * first)
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, op(sign * first, second))
    assert torch.equal(op(first, second), expected)


def spread(tensor: Any) -> Any:
    wide = tensor.new_full([2 * size for size in tensor.shape], float("nan"))
    view = wide[tuple(slice(None, None, 2) for _ in tensor.shape)]
    return view.copy_(tensor)


def shifted(tensor: Any) -> Any:
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


@KERNELS
@pytest.mark.parametrize("form", [spread, shifted, lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1)])
def test_memory_of_any_form(form: Any, name: str, in_use: cg.Bundle) -> None:
    op, first, second, expected = example(name)
    out = form(torch.full_like(expected, float("nan")))
    assert op(form(first), form(second), out=out) is out
    assert torch.equal(out, expected)
    torch.cuda.synchronize()  # whatever was wrong with an address ends the context here


def test_mixed_devices(in_use: cg.Bundle) -> None:
    op, first, second, expected = example(NAMES[1])
    with pytest.raises(ValueError, match=r"^filter: is on the CPU, and output_delta on cuda:0"):
        op(first, second.cpu())
    with pytest.raises(ValueError, match=r"^filter: is on cuda:0, and output_delta on the CPU"):
        op(first.cpu(), second)
    with pytest.raises(ValueError, match=r"^out: is on the CPU, and output_delta on cuda:0"):
        op(first, second, out=expected.cpu())
    if torch.cuda.device_count() > 1:
        with pytest.raises(ValueError, match=r"^filter: is on cuda:1, and output_delta on cuda:0"):
            op(first, second.to("cuda:1"))
    assert torch.equal(op(first, second), expected)


@KERNELS
def test_cupy(name: str, in_use: cg.Bundle) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    op, first, second, expected = example(name)
    one, two = (cupy.from_dlpack(tensor) for tensor in (first, second))
    result = op(one, two)
    assert isinstance(result, cupy.ndarray)
    assert torch.equal(torch.from_dlpack(result), expected)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        late = cupy.zeros_like(one)
        late[...] = one
        result = op(late, two)
        stream.synchronize()
    assert torch.equal(torch.from_dlpack(result), expected)


class Foreign:
    """A tensor that only DLPack tells of."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)


@KERNELS
def test_whatever_has_dlpack(name: str, in_use: cg.Bundle) -> None:
    op, first, second, expected = example(name)
    with torch.cuda.stream(torch.cuda.Stream()):
        late, out = first * 1, torch.full_like(expected, float("nan"))
        op(Foreign(late), Foreign(second), out=Foreign(out))
        assert torch.equal(out, expected)


def test_it_returns_before_the_end(in_use: cg.Bundle) -> None:
    op, first, second, _ = example(NAMES[0])
    busy = torch.randn(BUSY, BUSY, device="cuda")
    torch.cuda.synchronize()
    for _ in range(50):
        busy = busy @ busy * 1e-3
    done = torch.cuda.Event()
    op(first, second)
    done.record()
    assert not done.query()
    torch.cuda.synchronize()
