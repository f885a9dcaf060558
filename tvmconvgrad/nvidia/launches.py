"""What a call of a kernel does on a GPU: functions that are launched one after the other. Pure Python.

Every shape is known when a kernel is built, and so are all sizes of its launches: they are kept beside the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmconvgrad.nvidia.tensor_maps import Tensor, TensorMap

Extent = tuple[int, int, int]
Argument = int | Tensor | TensorMap
"""What a function is passed: one of the kernel's tensors, an offset in bytes into its workspace, or a map of either."""

TENSORS: tuple[Tensor, ...] = ("first", "second", "out")
ALIGNMENT = 256
"""Of each piece of workspace, in bytes."""


@dataclass(frozen=True)
class Launch:
    """A function of the code with the blocks that it runs in, the threads of each, and the shared memory that each
    takes beyond what its code declares, in bytes."""

    function: str
    grid: Extent
    block: Extent
    shared_bytes: int
    arguments: tuple[Argument, ...]
    early: bool = False
    """Whether its blocks may be there before the launch before it has ended: they wait for that by themselves."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types; `from_dict` takes it back."""
        arguments = [each.to_dict() if isinstance(each, TensorMap) else each for each in self.arguments]
        return {**vars(self), "grid": list(self.grid), "block": list(self.block), "arguments": arguments}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Launch:
        """The launch of which `to_dict` made `data`."""
        arguments = tuple(TensorMap.from_dict(each) if isinstance(each, dict) else each for each in data["arguments"])
        extents = {name: tuple(data[name]) for name in ("grid", "block")}
        shared_bytes, early = data["shared_bytes"], data.get("early", False)
        return cls(data["function"], shared_bytes=shared_bytes, arguments=arguments, early=early, **extents)

    @property
    def places(self) -> set[int | Tensor]:
        """The tensors and the pieces of workspace that it is passed, or maps of them."""
        return {each.tensor if isinstance(each, TensorMap) else each for each in self.arguments}
