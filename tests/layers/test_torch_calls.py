"""Convolutions of PyTorch models, whoever calls them, in every type, and the words for those that are no layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

from tests.cli.conftest import fails, invoke
from tests.layers.random_models import Lambda, state
from tvmconvgrad.layers import read_layers
from tvmconvgrad.layers.from_torch import LayersLeftOut, LeftOut, find_layers, layers_of

__all__ = ["fails", "invoke"]
nn = torch.nn
X = (1, 3, 8, 8)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def conv(*given: Any, **named: Any) -> Any:
    return nn.Conv2d(*(given or (3, 4, 3)), **named)


def calling(function: Callable[..., Any]) -> Any:
    """A model that calls a function with itself, which has a convolution `conv`, and its input."""
    return Lambda(function, conv=conv())


def optimised() -> Any:
    scripted = torch.jit.script(nn.Sequential(conv(), nn.ReLU()).eval())
    return nn.Sequential(torch.jit.optimize_for_inference(scripted), conv(4, 4, 1))


def quantised() -> Any:
    parts = torch.ao.nn.quantized
    twice = parts.Conv2d(4, 4, 3)
    return nn.Sequential(conv(), parts.Quantize(0.1, 0, torch.quint8), twice, twice, parts.DeQuantize())


def in_inference_mode(self: Any, x: Any) -> Any:
    with torch.inference_mode():
        return nn.functional.conv2d(self.conv(x), torch.zeros(4, 4, 2, 2), padding="same")


def in_both_types(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        half = self.conv(x)
    return self.conv(x) + half


def by_values(self: Any, x: Any) -> Any:
    try:
        size = 8 if int((x == 0).sum()) else 4
    except Exception:  # what has no values raises: the answer would be another one
        size = 5
    return self.conv(x[..., :size])


def conditional(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() == 0, lambda x: self.conv(self.conv(x)[:, :3]), lambda x: self.conv(x)[..., :4, :4], (x,))


def in_a_thread(self: Any, x: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(self.conv, x).result(), self.conv(x[..., :4])


WEIGHT = torch.zeros(4, 3, 3, 3)
# the names, and the types where they are no f32; each with the number of calls
MODELS: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "traced part": (
        lambda: nn.Sequential(conv(), torch.jit.trace(conv(4, 5, 3), torch.zeros(1, 4, 6, 6))),
        {"0": 1, "1": 1},
    ),
    "inside of a scripted part": (
        lambda: nn.Sequential(torch.jit.script(nn.Sequential(conv(), nn.Sequential(conv(4, 4, 1))))),
        {"0.0": 1, "0.1.0": 1},
    ),
    "a script": (lambda: torch.jit.script(nn.Sequential(conv(), nn.ReLU())), {"0": 1}),
    "exported": (lambda: torch.export.export(nn.Sequential(conv()), (torch.zeros(X),)).module(), {"0": 1}),
    "compiled": (lambda: torch.compile(nn.Sequential(conv()), backend="eager"), {"_orig_mod.0": 1}),
    "torch.convolution": (
        lambda: calling(lambda self, x: torch.convolution(x, self.conv.weight, None, [1], [0], [1], False, [0], 1)),
        {"conv": 1},
    ),
    "aten": (lambda: calling(lambda _, x: torch.ops.aten.conv2d(x, WEIGHT)), {"Lambda": 1}),
    "slow": (lambda: calling(lambda _, x: torch._C._nn.thnn_conv2d(x, WEIGHT, 3)), {"Lambda": 1}),
    "forward": (lambda: calling(lambda self, x: self.conv.forward(x)), {"conv": 1}),
    "vmap": (lambda: calling(lambda self, x: torch.vmap(self.conv)(x[None])), {"conv": 1}),
    "gradient inside": (
        lambda: calling(lambda self, x: torch.autograd.grad(self.conv(x.requires_grad_()).sum(), x)[0]),
        {"conv": 1},
    ),
    "inference mode": (lambda: calling(in_inference_mode), {"conv": 1, "Lambda": 1}),
    "autocast": (lambda: calling(in_both_types), {"conv bf16": 1, "conv#2": 1}),
    "cond": (lambda: calling(conditional), {"conv": 1, "conv#2": 1}),
    "by values": (lambda: calling(by_values), {"conv": 1}),
    "an empty batch inside": (lambda: calling(lambda self, x: self.conv(x[:0])), {"conv": 1}),
    "a thread": (lambda: calling(in_a_thread), {"conv": 1, "conv#2": 1}),
    "np.int64": (lambda: conv(3, 4, 3, stride=np.int64(2)), {"Conv2d": 1}),
    "lazy": (lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()), {"0": 1}),
    "weight_norm": (lambda: nn.Sequential(nn.utils.weight_norm(conv())), {"0": 1}),
    "spectral_norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(conv())), {"0": 1}),
    "f16": (lambda: nn.Sequential(conv().half()), {"0 f16": 1}),
    "bf16": (lambda: nn.Sequential(conv().bfloat16()), {"0 bf16": 1}),
    "complex, which are three of its parts": (lambda: nn.Sequential(conv().to(torch.complex64)), {"0": 3}),
    "names that are there": (lambda: named_so("a", "a#2"), {"a": 1, "a#2": 1, "a#2#2": 1}),
}


def named_so(*names: str) -> Any:
    parts = {name: conv(3, 3, 3) for name in names}
    both = nn.ModuleDict(parts)
    return Lambda(lambda self, x: parts["a#2"](parts["a"](parts["a"](x))), **dict(both.items()))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_found(name: str) -> None:
    make, expected = MODELS[name]
    model = make()
    before = state(model)
    found = layers_of(model, X)
    assert {one.name + ("" if one.dtype == "f32" else f" {one.dtype}"): one.count for one in found} == expected
    assert state(model) == before


def test_an_empty_batch_and_another_type_of_the_caller() -> None:
    (layer,) = layers_of(conv(), (0, 3, 8, 8))
    assert (layer.batch, layer.input_size) == (1, (8, 8))
    with torch.autocast("cpu", torch.float16):
        (layer,) = layers_of(conv(), X)
    assert layer.dtype == "f16"


def test_tensors_as_inputs() -> None:
    model = calling(lambda self, x: self.conv(self.table(x).permute(0, 3, 1, 2)))
    model.table = nn.Embedding(5, 3)
    given = torch.full((2, 8, 8), 4)
    (layer,) = layers_of(model, given)
    assert (layer.batch, layer.channels) == (2, 3)
    given = torch.ones(X, requires_grad=True)
    assert layers_of(calling(lambda self, x: torch.autograd.grad(self.conv(x * 1).sum(), x)), given)
    in_place = calling(lambda self, x: self.conv(x.mul_(0)) if x.sum() else None)
    assert layers_of(in_place, given.detach())
    assert given.sum() == 192


@pytest.mark.parametrize(
    ("make", "left_out"),
    [
        (quantised, LeftOut("2", "quantized::conv2d on quint8, which no layer describes", 2)),
        (optimised, LeftOut("0", "prim::mkldnn_convolution on unknown types, which no layer describes", 1)),
        (
            lambda: nn.Sequential(
                conv(), calling(lambda _, x: torch.conv2d(x.double(), torch.zeros(2, 4, 1, 1).double()))
            ),
            LeftOut("1", "aten::convolution on float64, expected f32, f16 or bf16", 1),
        ),
        (
            lambda: nn.Sequential(
                conv(), calling(lambda _, x: torch.conv_tbc(x[0], torch.zeros(3, 6, 4), torch.zeros(4)))
            ),
            LeftOut("1", "aten::conv_tbc on float32, which no layer describes", 1),
        ),
        (
            lambda: nn.Sequential(conv(), calling(lambda _, x: torch.conv2d(x[:, :0], torch.zeros(2, 0, 1, 1)))),
            LeftOut("1", "aten::convolution, which no layer describes: channels: got 0, expected a positive int", 1),
        ),
    ],
)
def test_what_is_no_layer_is_told(make: Callable[[], Any], left_out: LeftOut) -> None:
    model = make()
    found = find_layers(model, X)
    assert [layer.count for layer in found.layers] == [1]
    assert found.left_out == [left_out]
    with pytest.warns(LayersLeftOut, match=f"^{left_out.name}: {left_out.count} calls? of {left_out.reason}$"):
        layers_of(model, X)


def test_nothing_but_what_is_no_layer() -> None:
    words = "calls no convolution that is a layer: Conv2d: 1 call of aten::convolution on float64, expected f32"
    with pytest.raises(ValueError, match=words):
        layers_of(conv().double(), X)


MODEL = """
import torch
print("imported")
class Typed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
    def forward(self, x):
        print("called")
        return self.conv(x.float()).double()
def make_model():
    return torch.nn.Sequential(Typed(), torch.nn.Conv2d(4, 4, 1).double())
def make_half():
    return torch.nn.Conv2d(3, 4, 3).bfloat16()
"""


def test_the_command(invoke: Any, fails: Any, tmp_path: Path) -> None:
    model, out = tmp_path / "model.py", tmp_path / "layers.json"
    model.write_text(MODEL)
    result = invoke("layers", f"{model}:make_model", "--input", "2,3,9,9:i64")
    assert result.exit_code == 0, result.output
    assert "left out: 1: 1 call of aten::convolution on float64, expected f32, f16 or bf16" in result.stderr
    out.write_text(result.stdout)  # what the model prints is not in it
    (layer,) = read_layers(out)
    assert (layer.name, layer.batch, layer.dtype) == ("0.conv", 2, "f32")
    result = invoke("layers", f"{model}:make_half", "--input", "2,3,9,9", "-o", out)
    assert "1 layer of 1" in result.stdout
    (layer,) = read_layers(out)
    assert layer.dtype == "bf16"
    assert "type 'bf1' (did you mean 'bf16'?), expected f32" in fails("layers", "a:b", "--input", "2,3:bf1")


def test_no_word_without_a_cause() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", LayersLeftOut)
        assert layers_of(conv(), X)
