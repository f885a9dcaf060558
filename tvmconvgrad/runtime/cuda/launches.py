"""What a call of a kernel does on a GPU: functions that are launched one after the other. Pure Python.

Every shape is known when a kernel is built, and so are all sizes of its launches: they are kept beside the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Extent = tuple[int, int, int]
Tensor = Literal["first", "second", "out"]
Argument = int | Tensor
"""What a function is passed: one of the kernel's tensors, or so many bytes into its workspace."""

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

    def to_dict(self) -> dict[str, Any]:
        """As JSON's types; `from_dict` takes it back."""
        return {**vars(self), "grid": list(self.grid), "block": list(self.block), "arguments": list(self.arguments)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Launch:
        """The launch of which `to_dict` made `data`."""
        fields = {name: tuple(data[name]) for name in ("grid", "block", "arguments")}
        return cls(data["function"], shared_bytes=data["shared_bytes"], **fields)
