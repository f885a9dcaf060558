"""A compiled kernel, and its call."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tvmconvgrad.common import verbose
from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.runtime import tensors, threads
from tvmconvgrad.runtime.arrays import Shape, Tensor
from tvmconvgrad.runtime.native import Function
from tvmconvgrad.runtime.python_calls import NOT_PLAIN, python_call
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.problem import tensor_bytes
from tvmconvgrad.spec.values import parse_bool

if TYPE_CHECKING:
    from tvmconvgrad.runtime.cuda.function import CudaFunction

PHYSICAL_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62


@dataclass(frozen=True)
class Kernel:
    """One gradient, compiled for its shapes, type and target. Calls from several threads at once are safe.

    `schedule` says which schedule made the code, and with which numbers, `origin` where those come from: "default" or a
    tuning log; `workspace_bytes` is the memory that a call needs besides its tensors. `function` is None when the sum
    is empty: the result is then zero, or has no elements.
    """

    problem: Problem
    target: Target
    schedule: str
    workspace_bytes: int
    function: Function | CudaFunction | None = field(repr=False)
    origin: str = "default"

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.problem.operator

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
        """Compute the gradient of two tensors of the kernel's shapes and type.

        Returns `out`, or a new tensor of the kind of `first`: a PyTorch tensor, a jax.Array, else a NumPy array. `out`
        may be strided, unaligned, or share memory with an input; the result is then computed in other memory and
        copied. A kernel that was compiled with `accumulate=True`, `bias_delta=True` or `bias=True` is called with it:
        the first adds to what `out` (and `bias_delta`) has; the second takes a tensor of one axis, the channels of
        output_delta, of the result's type, that shares no memory with the others; the third one of the result's
        channels, of the inputs' type. Raises ValueError or TypeError if a tensor or an option is not what the kernel
        was compiled for, and MemoryError if there is not enough memory for the workspace.
        """
        if accumulate is not False or bias_delta is not None or bias is not None or self._has_options:
            self._check_options(accumulate, bias_delta, bias, out)
        # Most calls have plain tensors. C checks these: in Python that takes longer than a tiny layer does.
        quick = self._quick if out is not None else self._quick_with_new_result
        if quick is not None:
            result = self._new_result(first, second) if out is None else out
            threads.prepare()
            status = quick(first, second, result, bias_delta if bias is None else bias)
            if status == 0:
                return result
            if status != NOT_PLAIN:
                raise cast(Function, self.function).explain(status)
        return self._call_checked(first, second, out, bias_delta, bias)

    @computed_once
    def _has_options(self) -> bool:
        """Whether calls have an option that the kernel was compiled with."""
        epilogue = self.problem.epilogue
        return epilogue.accumulate or epilogue.bias_delta or epilogue.bias

    def _check_options(self, accumulate: object, bias_delta: object, bias: object, out: object) -> None:
        """Raise ValueError or TypeError unless a call has the options that the kernel was compiled with."""
        wanted = self.problem.epilogue
        are_given = accumulate, bias_delta is not None, bias is not None
        if accumulate is False and are_given == (wanted.accumulate, wanted.bias_delta, wanted.bias):
            return  # most calls, at once
        given = {"accumulate": parse_bool("accumulate", accumulate)}
        given |= {"bias_delta": bias_delta is not None, "bias": bias is not None}
        for name, is_given in given.items():
            if is_given and not getattr(wanted, name):
                raise ValueError(f"{name}: this kernel has no such option, expected compile(.., {name}=True)")
            if not is_given and getattr(wanted, name):
                raise ValueError(f"{name}: missing; this kernel is compiled with {name}=True")
        if accumulate and out is None:
            raise ValueError("accumulate: there is nothing to add to, expected out=")

    def run(self, first: int, second: int, out: int, openmp: int = 0, count: int = 1, bias: int = 0) -> None:
        """Compute the gradient of dense tensors at these addresses, which are not checked; they must not overlap.
        `bias` is that of the bias, or of bias_delta; 0 unless the kernel was compiled with one of them.

        With `openmp`, the address of an OpenMP runtime's functions (runtime/openmp.py), it runs on `count` threads of
        that runtime. Raises MemoryError if there is not enough memory for the workspace.
        """
        verbose.timed(self._run_at, self._describe_call)(first, second, out, openmp, count, bias)

    def _run_at(self, first: int, second: int, out: int, openmp: int, count: int, bias: int) -> None:
        if self.function is None:
            if not self.problem.epilogue.accumulate:
                for address, shape in zip((out, bias), self.problem.output_shapes):
                    ctypes.memset(address, 0, tensor_bytes(shape, self.problem.output_dtype))
        elif openmp and isinstance(self.function, Function):
            self._check_workspace()
            threads.prepare()  # for a forked child, which has none of that runtime's threads
            self.function.run_by_openmp(openmp, count, first, second, out, bias)
        else:
            self._launch(self.function, first, second, out, *([bias] if bias else []))

    @computed_once
    def _quick(self) -> Callable[..., int] | None:
        """The way for plain tensors, where the library of the function has one."""
        return self._python_call(has_own_result=True)

    @computed_once
    def _quick_with_new_result(self) -> Callable[..., int] | None:
        """The same for a result that nobody has seen yet."""
        return self._python_call(has_own_result=False)

    def _python_call(self, *, has_own_result: bool) -> Callable[..., int] | None:
        if self.workspace_bytes > PHYSICAL_MEMORY or not isinstance(self.function, Function):
            return None
        call = python_call(self.function, self.problem, has_own_result=has_own_result)
        return call and verbose.timed(call, self._describe_call)

    def _describe_call(self) -> str:
        return verbose.describe("exec", self.problem, str(self.target), self.schedule)

    def _new_result(self, first: Any, second: Any) -> Any:
        """A result for plain inputs. None for others: there may be no memory for what they are refused for."""
        kind, shapes = tensors.known_kind(first), self._shapes
        try:
            if kind is None or tensors.known_kind(second) is None or (first.shape, second.shape) != shapes[:2]:
                return None
        except RuntimeError:  # PyTorch's nested tensors have no shape
            return None
        return kind.empty(shapes[2], self.problem.output_dtype)

    @computed_once
    def _shapes(self) -> tuple[Shape, Shape, Shape]:
        return (*self.problem.input_shapes, self.problem.output_shape)

    def _call_checked(self, first: Any, second: Any, out: Any, bias_delta: Any, bias: Any) -> Any:
        problem = self.problem
        names, shapes = problem.input_names, problem.input_shapes
        read = [self._checked(names[0], first, shapes[0]), self._checked(names[1], second, shapes[1])]
        if bias is not None:
            read.append(self._checked("bias", bias, problem.bias_shape))
        kind = read[0].kind
        value = kind.empty(problem.output_shape, problem.output_dtype) if out is None else out
        result = self._checked("the result" if out is None else "out", value, problem.output_shape, writes=True)
        written = [result]
        if bias_delta is not None:
            written.append(self._checked("bias_delta", bias_delta, problem.bias_shape, writes=True))
            for name, other in zip((*names, "out"), (*read, result)):
                if tensors.overlap(written[1], other):
                    raise ValueError(f"bias_delta: shares memory with {name}, expected memory of its own")
        self._run_on_dense(read, written, is_new=out is None)
        return kind.finished(value) if out is None else out

    def _run_on_dense(self, read: Sequence[Tensor], written: Sequence[Tensor], is_new: bool) -> None:
        """Run with what is written as a kernel takes it: in other memory, which is then copied, where it must be."""
        targets = []
        for name, tensor in zip(("out", "bias_delta"), written):
            why = self._misfit(tensor, read)
            if why is None:
                if not (is_new and tensor is written[0]):
                    tensor.kind.mark_written(tensor.value)
                targets.append(tensor)
            else:
                verbose.log.debug("%s: computed %s in a temporary and copied it, because %s", self.name, name, why)
                targets.append(tensor._replace(value=tensor.kind.empty(tensor.shape, tensor.dtype)))
                if self.problem.epilogue.accumulate:
                    tensor.kind.copy(targets[-1].value, tensor.value)
        self._run(read, targets)
        for tensor, target in zip(written, targets):
            if target is not tensor:
                tensor.kind.copy(tensor.value, target.value)

    @property
    def _read_names(self) -> tuple[str, ...]:
        """The names of what a kernel may read."""
        return (*self.problem.input_names, "bias")

    def _misfit(self, written: Tensor, read: Sequence[Tensor]) -> object | None:
        """Why a kernel cannot write this very memory; None where it can."""
        shared = (
            f"it shares memory with {name}"
            for name, tensor in zip(self._read_names, read)
            if tensors.overlap(written, tensor)
        )
        return written.kind.misfit(written.value) or next(shared, None)

    def __str__(self) -> str:
        return (
            f"{self.problem}\n  target    {self.target}\n  schedule  {self.schedule}\n"
            f"  decisions {self.origin}\n  workspace {self.workspace_bytes} bytes"
        )

    def _checked(self, name: str, value: Any, shape: Shape, *, writes: bool = False) -> Tensor:
        dtype = self.problem.output_dtype if writes else self.problem.dtype
        return self._fitting(name, tensors.understand(name, value, writes=writes), shape, dtype)

    def _fitting(self, name: str, tensor: Tensor, shape: Shape, dtype: str) -> Tensor:
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tensor.shape} does not fit, this kernel is compiled for {shape}")
        if tensor.dtype != dtype:
            raise ValueError(f"{name}: dtype {tensor.dtype} does not fit, this kernel is compiled for {dtype}")
        return tensor

    def _run(self, read: Sequence[Tensor], written: Sequence[Tensor]) -> None:
        if self.function is None:
            self._fill_zero(*written)
            return
        one, two, *bias = self._dense(read)
        launch = verbose.timed(self._launch, self._describe_call)
        launch(self.function, *(tensor.kind.extent(tensor.value)[0] for tensor in (one, two, *written, *bias)))

    def _fill_zero(self, *written: Tensor) -> None:
        """What a call does without a function: it adds nothing, or the result is zero."""
        for tensor in written if not self.problem.epilogue.accumulate else ():
            verbose.timed(tensor.kind.fill_zero, self._describe_call)(tensor.value)

    def _dense(self, read: Sequence[Tensor]) -> list[Tensor]:
        """What a kernel reads as it takes it: copied where it must be."""
        found = []
        for name, tensor in zip(self._read_names, read):
            why = tensor.kind.misfit(tensor.value)
            if why is not None:
                verbose.log.debug("%s: copied %s, because %s", self.name, name, why)
                tensor = tensor._replace(value=tensor.kind.dense_copy(tensor.value))
            found.append(tensor)
        return found

    def _launch(self, function: Any, *addresses: int) -> None:
        self._check_workspace()
        threads.prepare()
        function(*addresses)

    def _check_workspace(self) -> None:
        if self.workspace_bytes > PHYSICAL_MEMORY:
            raise MemoryError(f"the workspace of {self.workspace_bytes} bytes exceeds this machine's memory")
