"""A kernel for a GPU, and its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

from tvmconvgrad.common import verbose
from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime.arrays import Shape, Tensor
from tvmconvgrad.runtime.cuda import tensors
from tvmconvgrad.runtime.cuda.function import CudaFunction, Where
from tvmconvgrad.runtime.cuda.kinds import GpuKind
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec.dtypes import ITEM_BYTES


@dataclass(frozen=True)
class CudaKernel(Kernel):
    """One gradient, compiled for a GPU. Its tensors are on one GPU; calls from several threads at once are safe.

    A call launches on the stream that the first tensor's library works on now, and does not wait for the end; where
    another tensor's library works on another stream, the two wait for each other. The workspace comes from that
    library's allocator, and so may be used in a graph that it records.
    """

    def __call__(
        self,
        first: Any,
        second: Any,
        out: Any = None,
        *,
        accumulate: bool = False,
        bias_delta: Any = None,
        bias: Any = None,
    ) -> Any:
        """Compute the gradient of two tensors of the kernel's shapes and type on a GPU.

        Returns `out`, or a new tensor of the kind of `first`. Such kernels have no options. Raises what a CPU's kernel
        raises, and ValueError for tensors on different devices, or on a GPU that the code is not for.
        """
        if accumulate is not False or bias_delta is not None or bias is not None:
            self._check_options(accumulate, bias_delta, bias, out)
        kind = tensors.known_kind(first)
        others = (second,) if out is None else (second, out)
        if kind is not None and self.function is not None and all(tensors.known_kind(each) is kind for each in others):
            shapes, sizes, dtype = self._layout
            one, two = kind.address(first, shapes[0], dtype, False), kind.address(second, shapes[1], dtype, False)
            result = kind.empty(shapes[2], dtype) if out is None and one and two else out
            place = kind.address(result, shapes[2], dtype, True) if one and two else 0
            after = place + sizes[2]
            if place and (after <= one or one + sizes[0] <= place) and (after <= two or two + sizes[1] <= place):
                if out is not None:
                    kind.mark_written(out)
                self.launch(kind, one, two, place)
                return result
        tensors.common((*self.problem.input_names, "out"), (first, second, first if out is None else out))
        return self._call_checked(first, second, out, None, None)

    @computed_once
    def _layout(self) -> tuple[tuple[Shape, ...], tuple[int, ...], str]:
        """What a call compares with: shapes and bytes of the inputs and the result, and the type."""
        shapes = (*self.problem.input_shapes, self.problem.output_shape)
        dtype = self.problem.dtype
        return shapes, tuple(prod(shape) * ITEM_BYTES[dtype] for shape in shapes), dtype

    def _checked(self, name: str, value: Any, shape: Shape, *, writes: bool = False) -> Tensor:
        return self._fitting(name, tensors.understand(name, value, writes=writes), shape, self.problem.dtype)

    def _run(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        if self.function is None:
            self._fill_zero(*written)
            return
        kinds = [cast(GpuKind, tensor.kind) for tensor in (*read, *written)]
        dense = self._dense(read)
        addresses = [tensor.kind.extent(tensor.value)[0] for tensor in (*dense, *written)]
        with driver.driver().on(kinds[0].gpu):
            stream = kinds[0].stream()
            others = {kind.stream() for kind in kinds} - {stream}
            for other in others:
                driver.driver().wait(stream, other)
            self.launch(kinds[0], *addresses)
            for other in others:
                driver.driver().wait(other, stream)
            if any(kind.foreign for kind in kinds):
                driver.driver().synchronize(stream)

    def launch(self, kind: GpuKind, first: int, second: int, out: int) -> None:
        """Launch on the stream of a kind, with its memory for the workspace.

        The tensors at these addresses, which nobody checks, are dense and aligned, and do not overlap.
        """
        workspace, held = kind.workspace(self.workspace_bytes) if self.workspace_bytes else (0, None)
        self._launched(Where(kind.gpu, kind.stream()), first, second, out, workspace)
        del held

    @computed_once
    def _launched(self) -> Callable[..., None]:
        """The function, whose launches are timed where lines are printed: nobody waits for the GPU."""
        return verbose.timed(cast(CudaFunction, self.function), self._describe_call)
