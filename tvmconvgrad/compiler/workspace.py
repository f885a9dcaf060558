"""How much memory a program allocates, measured while it is compiled."""

from __future__ import annotations

import tvm
from tvm import tirx

from tvmconvgrad.tir.rewriting import nodes

_ALLOCATES = "tirx.LowerTVMBuiltin"
"""The name of TVM's pass that allocates."""

_ALLOCATE = tvm.ir.Op.get("tirx.TVMBackendAllocWorkspace")


@tvm.instrument.pass_instrument
class WorkspaceMeter:
    """Records what a program allocates beyond the stack; a kernel holds all of it at the same time.

    `sizes` has the bytes of each allocation, `work_item_sizes` those of allocations that each work item of a parallel
    loop has for itself.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.work_item_sizes: list[int] = []

    @property
    def bytes(self) -> int:
        """What a call on one thread needs."""
        return sum(self.sizes)

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM."""
        if info.name == _ALLOCATES:
            self.sizes += _allocated(module)
            loops = [loop for loop in nodes(module, tirx.For) if loop.kind == tirx.ForKind.PARALLEL]
            self.work_item_sizes += [size for loop in loops for size in _allocated(loop.body)]


def _allocated(program: tvm.IRModule | tirx.Stmt) -> list[int]:
    return [int(call.args[2]) for call in nodes(program, tvm.ir.Call) if call.op.same_as(_ALLOCATE)]
