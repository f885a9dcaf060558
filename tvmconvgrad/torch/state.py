"""The settings that apply in this process, and the layers that were called under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvmconvgrad.common import process
from tvmconvgrad.frontends.stack import SettingsStack
from tvmconvgrad.torch.layers.layer import Backward, Forward
from tvmconvgrad.torch.settings import Settings
from tvmconvgrad.torch.steps.first import FirstStep
from tvmconvgrad.torch.steps.step import Step

MOST_LAYERS, MOST_SETTINGS = 4096, 16
"""Layers that are remembered for each pass, forward or backward, and settings whose layers are. When there are more,
all layers, or the oldest settings, are forgotten: a program whose shapes never repeat must not fill the memory, nor one
that makes a new function for `enable(layers=...)` in every step."""
SIZES_AT_ONCE, PATIENCE = 8, 3
"""Once the first step is over (steps/first.py), kernels are built at the next call for the first SIZES_AT_ONCE
combinations of a layer's pass, batch and image size. For a later one they are built after PATIENCE calls, since some
programs have another size in every step."""


@dataclass(frozen=True, eq=False)
class Called:
    """The layers that were called under some settings."""

    settings: Settings
    forwards: dict[Any, Forward] = field(default_factory=dict)
    backwards: dict[Any, Backward] = field(default_factory=dict)

    @property
    def layers(self) -> list[Forward | Backward]:
        """All of them."""
        return [*list(self.forwards.values()), *list(self.backwards.values())]


class State:
    """The settings that are pushed and removed, and the layers that were called. Without settings PyTorch computes."""

    def __init__(self) -> None:
        self._stack = SettingsStack[Settings]()
        self.in_force: Called | None = None
        """The layers under the settings that apply now; None if PyTorch computes everything."""
        self._last: Called | None = None
        self.foreign: dict[str, int] = {}
        """The number of calls with subclasses of Tensor, by the name of the class."""
        self._sizes: dict[Any, int] = {}
        """The number of sizes in which each convolution was called, by `Convolution.without_sizes`."""
        self._known: dict[Any, Called] = {}
        self._first_step = FirstStep()

    @property
    def settings(self) -> Settings | None:
        """Those that apply now; None if PyTorch computes everything."""
        called = self.in_force
        return None if called is None else called.settings

    @property
    def layers(self) -> list[Forward | Backward]:
        """All that were called under the present settings, or under the last ones if there are none."""
        return [] if self._last is None else self._last.layers

    def steps(self) -> list[Step]:
        """The steps of all `layers`."""
        return [step for layer in self.layers for step in layer.steps]

    def push(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        with process.lock:
            self._stack.push(settings)
            self._follow()

    def remove(self, settings: Settings) -> None:
        """Undo the last `push` of this object. The settings that are last on the stack then apply."""
        with process.lock:
            self._stack.remove(settings)
            self._follow()

    def replace(self, settings: Settings | None) -> None:
        """Empty the stack and apply these settings; with None, none."""
        with process.lock:
            self._stack.replace(settings)
            self._follow()

    def keep(
        self, settings: Settings, layers: dict[Any, Any], key: Any, describe: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Describe and remember a new layer."""
        if len(layers) >= MOST_LAYERS:
            layers.clear()
            self._sizes.clear()
        layer = layers[key] = describe(settings, *arguments)
        sizes = self._sizes[layer.conv.without_sizes] = self._sizes.get(layer.conv.without_sizes, 0) + 1
        for step in layer.steps:
            step.patience = PATIENCE if sizes > SIZES_AT_ONCE else 0
            step.first_step = self._first_step
        return layer

    def _follow(self) -> None:
        settings = self._stack.last
        if settings is None:
            self.in_force = None
            return
        key = settings.algorithm, settings.dtypes, settings.devices, id(settings.layers)
        called = self._known.pop(key, None) or Called(settings)
        while len(self._known) >= MOST_SETTINGS:
            del self._known[next(iter(self._known))]
        self._known[key] = called  # which keeps the function whose id() it is
        self.in_force = self._last = called


state = State()
