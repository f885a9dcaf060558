"""A compiled kernel, and its call."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmconvgrad.runtime import arrays, threads
from tvmconvgrad.runtime.arrays import Tensor
from tvmconvgrad.runtime.native import Function
from tvmconvgrad.spec import Problem
from tvmconvgrad.targets import Target

PHYSICAL_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62


@dataclass(frozen=True)
class Kernel:
    """One gradient, compiled for its shapes, type and target. Calls from several threads at once are safe.

    `schedule` says which schedule made the code, and with which numbers; `workspace_bytes` is the memory that a call
    needs besides its tensors. `function` is None when the sum is empty: the result is then zero, or has no elements.
    """

    problem: Problem
    target: Target
    schedule: str
    workspace_bytes: int
    function: Function | None = field(repr=False)
    _shapes: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)
    _dtype: Any = field(init=False, repr=False, compare=False)
    _dense: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # What a call compares with, at hand: a call of a tiny layer should take little more than the layer.
        problem = self.problem
        object.__setattr__(self, "_shapes", (*problem.input_shapes, problem.output_shape))
        object.__setattr__(self, "_dtype", arrays.NUMPY_DTYPES[problem.dtype])
        object.__setattr__(self, "_dense", self.function is not None and problem.dtype != "bf16")

    @property
    def name(self) -> str:
        """The operator's name."""
        return self.problem.operator

    def __call__(self, first: Any, second: Any, out: Any = None) -> Any:
        """Compute the gradient of two tensors of the kernel's shapes and type.

        Returns `out`, or a new tensor of the kind of `first`: a PyTorch tensor or a NumPy array. `out` may be strided,
        unaligned, or share memory with an input; the result is then computed aside and copied.
        Raises ValueError or TypeError when a tensor is not what the kernel was compiled for, and MemoryError when the
        workspace exceeds the machine's memory.
        """
        if self._dense and self._are_ready(first, second, out):
            result = np.empty(self._shapes[2], self._dtype) if out is None else out
            self._launch(first, second, result)
            return result
        return self._call_checked(first, second, out)

    def _are_ready(self, first: Any, second: Any, out: Any) -> bool:
        """Whether all are NumPy arrays just as the kernel takes them: then nothing else needs a look."""
        shapes, dtype = self._shapes, self._dtype
        for value, shape in zip((first, second, out), shapes):
            if value is None and shape is shapes[2]:
                return True
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype or not value.flags.carray:
                return False
        return not (np.may_share_memory(first, out) or np.may_share_memory(second, out))

    def _call_checked(self, first: Any, second: Any, out: Any) -> Any:
        problem = self.problem
        names, shapes = problem.input_names, problem.input_shapes
        one = self._checked(names[0], first, shapes[0])
        two = self._checked(names[1], second, shapes[1])
        if out is None:
            result = arrays.new_like(one, problem.output_shape, problem.dtype)
            self._run(one, two, result)
            return result.value
        result = self._checked("out", out, problem.output_shape)
        arrays.check_writable("out", result)
        if arrays.is_native(result) and not (arrays.overlap(result, one) or arrays.overlap(result, two)):
            self._run(one, two, result)
        else:
            aside = arrays.new_like(result, problem.output_shape, problem.dtype)
            self._run(one, two, aside)
            arrays.copy_into(result, aside)
        return out

    def __str__(self) -> str:
        return (
            f"{self.problem}\n  target    {self.target}\n  schedule  {self.schedule}\n"
            f"  workspace {self.workspace_bytes} bytes"
        )

    def _checked(self, name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
        tensor = arrays.understand(name, value)
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tensor.shape} does not fit, this kernel is compiled for {shape}")
        if tensor.dtype != self.problem.dtype:
            raise ValueError(f"{name}: dtype {tensor.dtype} does not fit, this kernel is compiled for {self.problem.dtype}")
        return tensor

    def _run(self, one: Tensor, two: Tensor, result: Tensor) -> None:
        if self.function is None:
            arrays.fill_zero(result)
            return
        self._launch(arrays.native(one), arrays.native(two), arrays.native(result))

    def _launch(self, *natives: Any) -> None:
        if self.workspace_bytes > PHYSICAL_MEMORY:
            raise MemoryError(f"the workspace of {self.workspace_bytes} bytes exceeds this machine's memory")
        threads.call(self.function, *natives)

