"""Layers of PyTorch models: what autograd computes with them is what our gradients of the listed layers compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch

from tests.cli.conftest import fails, invoke
from tests.support.cases.layer import operator_of
from tvmconvgrad.layers import Layer, read_layers, suite
from tvmconvgrad.layers.from_torch import ModelFailed, layers_of

__all__ = ["fails", "invoke"]
nn = torch.nn
MODULES: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 7, 8)),
    "strided": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 4, 7, 8)),
    "groups": (lambda: nn.Conv1d(4, 8, 3, groups=2, padding=1), (2, 4, 9)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (1, 4, 5, 5)),
    "cube": (lambda: nn.Conv3d(2, 3, (2, 1, 3), padding=(0, 0, 1)), (1, 2, 4, 5, 6)),
    "same": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (1, 2, 6, 7)),
    "valid": (lambda: nn.Conv1d(2, 3, 2, padding="valid"), (1, 2, 6)),
    "reflect": (lambda: nn.Conv2d(2, 3, 3, padding=(2, 1), padding_mode="reflect"), (1, 2, 6, 7)),
    "circular same": (lambda: nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"), (1, 2, 6)),
    "up": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), (2, 4, 5, 6)),
    "up in groups": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2, dilation=2), (2, 4, 5)),
    "up a cube": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), (1, 2, 2, 3, 2)),
    "no batch": (lambda: nn.Conv2d(4, 6, 3, padding=1), (4, 7, 8)),
    "lazy": (lambda: nn.LazyConv2d(6, 3), (2, 4, 7, 8)),
}


def integers(*shape: int) -> Any:
    return torch.randint(-2, 3, shape).float()


class Called:
    """What PyTorch passed to a convolution's backward function, and got."""

    def __init__(self, module: Any, shape: tuple[int, ...]) -> None:
        given = integers(*shape).requires_grad_()
        module(given)  # for lazy ones
        module.weight.data = integers(*module.weight.shape)
        given.grad = module.weight.grad = None
        result = module(given)
        delta = integers(*result.shape)
        result.backward(delta)
        self.given, self.delta, self.weight = (t.detach().numpy() for t in (given, delta, module.weight))
        self.given_delta, self.weight_delta = given.grad.numpy(), module.weight.grad.numpy()
        self.pads_aside = module.padding_mode != "zeros"
        if self.pads_aside:
            mode = module.padding_mode
            self.given = nn.functional.pad(given, module._reversed_padding_repeated_twice, mode=mode).detach().numpy()


@pytest.mark.parametrize("name", MODULES)
def test_the_layers_gradients_are_autograds(name: str) -> None:
    make, shape = MODULES[name]
    module = make()
    (layer,) = layers_of(nn.ModuleDict({"it": module})["it"], shape)
    assert read_back(layer) == layer
    called = Called(module, shape)
    filters, data = layer.gradients("NCX", "IOX" if layer.transposed else "OIX")
    batched = [array.reshape(layer.batch, *array.shape[-layer.rank - 1 :]) for array in (called.given, called.delta)]
    got = operator_of(filters)(*batched)
    np.testing.assert_array_equal(got, called.weight_delta)
    if not called.pads_aside:
        got = operator_of(data)(batched[1], called.weight)
        np.testing.assert_array_equal(got.reshape(called.given_delta.shape), called.given_delta)


def read_back(layer: Layer) -> Layer:
    from dataclasses import asdict

    return Layer(**asdict(layer))


class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]
    """He et al., 2015: the stride is in the first 1x1 convolution."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = [(entering, width, 1, stride), (width, width, 3, 1), (width, 4 * width, 1, 1)]
        parts: list[Any] = []
        for c, o, kernel, *strides in sizes:
            parts += [
                nn.Conv2d(c, o, kernel, (strides or [1])[0], kernel // 2, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(),
            ]
        self.main = nn.Sequential(*parts[:-1])
        whole = entering == 4 * width and stride == 1
        self.short = nn.Identity() if whole else nn.Conv2d(entering, 4 * width, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.main(x) + self.short(x))


def resnet_50() -> Any:
    blocks, entering = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(count):
            blocks.append(Bottleneck(entering, width, 1 if place else stride))
            entering = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def test_resnet_50_has_the_layers_of_the_suite() -> None:
    model = resnet_50()
    found = layers_of(model, (8, 3, 224, 224))
    assert sum(layer.count for layer in found) == 53
    numbers = {tuple(vars(layer).items())[1:-1] for layer in found}
    assert numbers == {tuple(vars(layer).items())[1:-1] for layer in suite("resnet_50", 8)}
    assert found[0].name == "0"
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}  # left as it was
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model[1].num_batches_tracked == 0


class Tricky(nn.Module):  # type: ignore[misc, name-defined]
    """Looks at values, which the meta device has not; calls functions; uses one module for two shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.free = torch.ones(2, 2, 1, 1)

    def forward(self, x: Any, y: Any) -> Any:
        if x.sum().item() == 0:
            x = self.shared(self.norm(self.shared(x)))
        y = nn.functional.conv2d(self.shared(y), self.free, stride=2)
        return x.sum() + nn.functional.conv_transpose2d(y, weight=self.free, output_padding=1, stride=(2,)).sum()


def test_a_model_that_needs_values() -> None:
    model = Tricky()
    found = layers_of(model, (1, 2, 4, 4), (1, 2, 6, 6))
    assert model.norm.num_batches_tracked == 0  # left as it was
    assert [(layer.name, layer.op, layer.input_size, layer.strides, layer.count) for layer in found] == [
        ("shared", "Convolution", (4, 4), (1, 1), 2),
        ("shared#2", "Convolution", (6, 6), (1, 1), 1),
        ("Tricky", "Convolution", (6, 6), (2, 2), 1),
        ("Tricky#2", "ConvTranspose", (3, 3), (2, 2), 1),
    ]
    assert found[-1].output_size == (6, 6)


def test_what_is_no_model() -> None:
    with pytest.raises(TypeError, match=r"model: got 5 of type int, expected a torch\.nn\.Module"):
        layers_of(5, (1, 2))
    with pytest.raises(ValueError, match="forward pass of Linear calls no convolution"):
        layers_of(nn.Linear(2, 3), (1, 2))
    with pytest.raises(ModelFailed, match=r"forward of Conv2d on \(1, 3, 4, 4\) raised RuntimeError: Given groups=1"):
        layers_of(nn.Conv2d(2, 3, 3), (1, 3, 4, 4))
    with pytest.raises(ModelFailed, match="forward of Conv2d on nothing raised TypeError"):
        layers_of(nn.Conv2d(2, 3, 3))
    with pytest.raises(ValueError, match=r"input_shapes\[0\]: got -1"):
        layers_of(nn.Conv2d(2, 3, 3), (1, -1, 4, 4))


MODEL = """
import torch
from beside import CHANNELS
def make_model():
    return torch.nn.Sequential(torch.nn.Conv2d(3, CHANNELS, 3), torch.nn.Conv2d(CHANNELS, 4, 1))
class Model(torch.nn.Conv1d):
    def __init__(self):
        super().__init__(3, 4, 1)
instance = make_model()
def broken():
    raise KeyError("lost")
number = 5
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "beside.py").write_text("CHANNELS = 7")
    path = tmp_path / "my model.py"
    path.write_text(MODEL)
    yield path


def test_the_command(invoke: Any, model_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "layers.toml"
    result = invoke("layers", f"{model_file}:make_model", "--input", "2,3,9,9", "-o", out)
    assert result.exit_code == 0, result.output
    assert [(layer.name, layer.filters) for layer in read_layers(out)] == [("0", 7), ("1", 4)]
    assert "2 layers of 2" in result.stdout
    for name, shape in (("instance", "2,3,9,9"), ("Model", "2,3,9")):
        result = invoke("layers", f"{model_file}:{name}", "--input", shape)
        (tmp_path / "again.json").write_text(result.stdout)
        assert read_layers(tmp_path / "again.json")


def test_the_commands_errors(fails: Any, model_file: Path, tmp_path: Path) -> None:
    def error(model: object, *words: object) -> str:
        return str(fails("layers", model, "--input", "2,3,9,9", *words))

    assert error("model.py") == "MODEL: 'model.py' names no function, expected for example model.py:make_model"
    assert error("none.py:make") == "none.py: there is no such file"
    assert error("none_such:make").startswith("none_such: cannot be imported: ModuleNotFoundError")
    assert error(f"{model_file}:make_modle").endswith("has no 'make_modle' (did you mean 'make_model'?)")
    assert error(f"{model_file}:broken").endswith("broken: raised KeyError: 'lost'")
    assert error(f"{model_file}:number") == "model: got 5 of type int, expected a torch.nn.Module"
    assert "forward of Model on (2, 3, 9, 9) raised RuntimeError" in error(f"{model_file}:Model")
    assert "cannot be written" in error(f"{model_file}:make_model", "-o", tmp_path / "none" / "a.json")
    assert "ends with '.yaml', expected .json or .toml" in error(f"{model_file}:make_model", "-o", tmp_path / "a.yaml")
    (tmp_path / "wrong.py").write_text("def")
    assert "wrong.py: cannot be imported: SyntaxError" in error(f"{tmp_path / 'wrong.py'}:make")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)")
    assert "leaves.py: cannot be imported: SystemExit: 3" in error(f"{tmp_path / 'leaves.py'}:make")
