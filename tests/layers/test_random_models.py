"""Random models: every convolution that was drawn is found, with its type, and the model is as it was.

More of them: python -m tests.layers.test_random_models 1000
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed (pip install torch)")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.layers.random_models import Drawn, Lambda, Model, state
from tvmconvgrad.layers import Layer
from tvmconvgrad.layers.from_torch import ModelFailed, layers_of


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """Counts what PyTorch itself runs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.count += "conv" in function.name()
        return function(*arguments, **(named or {}))


def numbers(layers: list[Layer]) -> Counter[Drawn]:
    found: Counter[Drawn] = Counter()
    for one in layers:
        found[one.op, one.channels, one.filters, one.kernel, one.strides, one.groups, one.dtype] += one.count
    return found


def check(seed: int) -> bool:
    """Whether a model goes through at all; if so, all of it is found."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counted, twin, model = Counted(), Model(seed), Model(seed)
        try:
            with counted:
                twin.module(torch.zeros(model.shape))
        except Exception:
            return False
        before = state(model.module)
        if not model.drawn:
            with pytest.raises(ValueError, match="calls no convolution"):
                layers_of(model.module, model.shape)
        else:
            found = layers_of(model.module, model.shape)
            assert numbers(found) == model.drawn, seed
            assert sum(model.drawn.values()) == counted.count, seed
            assert len({layer.name for layer in found}) == len(found)
        assert state(model.module) == before, seed
        return True


def check_raising(seed: int) -> None:
    """A model that raises, at some place: it is as it was, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Model(seed)
        model.module.insert(model.random.randrange(len(model.module) + 1), Lambda(_raising))
        before = state(model.module)
        with pytest.raises(ModelFailed):
            layers_of(model.module, model.shape)
        assert state(model.module) == before, seed


def _raising(self: Any, x: Any) -> Any:
    torch.set_grad_enabled(False)
    raise random.choice([KeyError("lost"), SystemExit(3), RecursionError()])


def test_random_models() -> None:
    count = 25
    assert sum(map(check, range(count))) > count // 2


def test_random_models_that_raise() -> None:
    for seed in range(10):
        check_raising(seed)


if __name__ == "__main__":
    total = int(sys.argv[1])
    print(f"{sum(map(check, range(total)))} of {total} go through, and all of their convolutions were found")
    for number in range(total):
        check_raising(number)
