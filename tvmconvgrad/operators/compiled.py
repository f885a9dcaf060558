"""What every operator can do besides holding attributes: its call, and its kernels.

What happens at a call `op(x, dy)` on a CPU, until the kernel's first instruction:

1. If an earlier call had tensors of the same shapes and types, `_seen` has the kernel: go on with 5.
2. Shapes and types are read from the tensors (runtime/tensors.py). With the operator's attributes they make a
   `Problem`, and spec/ checks it.
3. kernels.py looks for the problem's kernel in the bundles in use, in memory, and in the cache on disk. What a tuning
   log has for the problem is part of what it looks for (records/).
4. A kernel that is nowhere is built in another process (compiler/service.py asks, compiler/worker.py answers): a rule
   of schedules/ makes the program, compiler/llvm.py makes a shared library of it. The cache keeps the library, and
   runtime/native.py loads it.
5. The kernel's own call (runtime/kernel.py) makes a result, if it is given none. It hands the Python objects to C,
   which checks that memory, shapes and types are what the kernel was compiled for, releases Python's lock, and calls
   the compiled function by TVM's convention (csrc/python.c, csrc/calling.c). Tensors that C does not take are looked at
   in Python: they are copied, or an error says what is wrong with them.
6. The compiled function gets threads and memory from csrc/services.c.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvmconvgrad import spec
from tvmconvgrad.bundles import registry
from tvmconvgrad.common import process
from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.kernels import get_kernel
from tvmconvgrad.machines.targets import DEFAULT, Target, parse_target
from tvmconvgrad.operators.inputs import bind, shape_of
from tvmconvgrad.runtime import memory, tensors
from tvmconvgrad.runtime.arrays import WrongDevice
from tvmconvgrad.runtime.cuda import tensors as gpus
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.spec.epilogue import Epilogue, parse_epilogue
from tvmconvgrad.spec.values import parse_bool, plain, show

if TYPE_CHECKING:
    from concurrent.futures import Future

Shape = Sequence[int]
TargetLike = str | Mapping[str, Any] | Target | None
_MOST_SEEN = 4096
"""At most this number of kernels are found quickly: in `_seen` of all operators together, and by `_kernel`."""


class Compiled(spec.Operator):
    """What every operator can do besides holding attributes: `op(first, second)` and `op.compile(shapes)`."""

    def __call__(
        self,
        *inputs: Any,
        out: Any = None,
        target: TargetLike = None,
        accumulate: bool = False,
        bias_delta: Any = None,
        bias: Any = None,
        result_dtype: Any = None,
        **named: Any,
    ) -> Any:
        """Compute the gradient; the kernel is taken from the cache, or built on the first call for these shapes.

        Takes the specification's inputs in order or by name (old and new names): two tensors, f32, f16 or bf16, NumPy
        arrays or anything with DLPack on the CPU, or on one NVIDIA GPU, where the kernel then runs; then, for the
        operators that have it, the result's shape, a 1-D s32 tensor or a sequence of ints, which wins over the
        attribute. `out` receives the result and is returned; it must be writable, and may not be a jax.Array. Without
        it the result is a tensor of the first input's kind. `accumulate=True` adds to what `out` has. `bias_delta`
        receives the bias gradient in the same call: the sum of output_delta over images and positions, one element a
        channel, of the result's type; with `accumulate` it is added, too. `bias` is added to the result where
        that is data, and has an element for each of its channels, of the inputs' type. `result_dtype="f32"` keeps the
        sums of 16-bit inputs in f32. The four are for CPUs. Autograd sees no call: an input that requires grad is
        refused in grad mode, and a tensor of PyTorch's that is written gets another version. Raises ValueError or
        TypeError for what does not fit, before any kernel runs.
        """
        options = result_dtype, accumulate, bias_delta is not None, bias is not None
        if len(inputs) == 2 and not named and target is None:
            # The quick way for plain arrays seen before; the kernel itself checks all that it is passed.
            first, second = inputs
            if tensors.known_kind(first) and tensors.known_kind(second):
                try:
                    seen = first.shape, second.shape, first.dtype, second.dtype, options, registry.generation
                    kernel = self._seen.get(seen)
                except (RuntimeError, TypeError):  # nested tensors, or an option that is wrong: the long way has words
                    kernel = None
                try:
                    if kernel is not None:
                        return kernel(first, second, out, accumulate=accumulate, bias_delta=bias_delta, bias=bias)
                except WrongDevice:  # the same on a GPU: the long way finds its kernel, or the words
                    pass
        first, second, wanted = bind(self, inputs, named)
        # as it is understood: a NumPy array of no axes is no key
        options = (result_dtype, parse_bool("accumulate", accumulate), *options[2:])
        kernel = self._kernel_for(first, second, wanted, _parsed(target), options)
        plain = wanted is None and target is None and not kernel.target.backend.is_gpu
        if plain and tensors.known_kind(first) and tensors.known_kind(second):
            _shortcuts.make_room(self)
            self._seen[first.shape, second.shape, first.dtype, second.dtype, options, registry.generation] = kernel
        return kernel(first, second, out, accumulate=accumulate, bias_delta=bias_delta, bias=bias)

    def _kernel_for(
        self, first: Any, second: Any, wanted: Any, target: Target | None, options: tuple[Any, Any, bool, bool]
    ) -> Kernel:
        names = self.input_names
        gpu = gpus.common(names, (first, second)) if target is None or target.backend.is_gpu else None
        understand = tensors.understand if gpu is None else gpus.understand
        one, two = (understand(name, value) for name, value in zip(names, (first, second)))
        if one.dtype != two.dtype:
            raise ValueError(f"{names[1]}: dtype {two.dtype} differs from {names[0]}'s {one.dtype}, expected the same")
        epilogue = parse_epilogue(one.dtype, self.gradient is spec.Gradient.FILTER, *options)
        shapes = one.shape, two.shape, shape_of(self, wanted)
        return _kernel(self, *shapes, one.dtype, epilogue, target, gpu, registry.generation)

    @computed_once
    def _seen(self) -> dict[tuple[Any, ...], Kernel]:
        """CPUs' kernels of earlier calls by what is quick to compare: shapes and types as the tensors' library has
        them."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_seen"}

    def compile(
        self,
        first_shape: Shape,
        second_shape: Shape,
        shape_input: Any = None,
        *,
        dtype: Any = "f32",
        target: TargetLike = None,
        schedule: str | None = None,
        tuned: bool = True,
        accumulate: bool = False,
        bias_delta: bool = False,
        bias: bool = False,
        result_dtype: Any = None,
    ) -> Kernel:
        """The kernel for inputs of these shapes, from the cache or built now.

        `shape_input` is the result's shape; it overrides the attribute. `dtype` is f32, f16 or bf16. `target` is a
        string such as "llvm -mcpu=znver3" or "cuda -arch=sm_90", or TVM's dict; by default this machine's CPU.
        `schedule` forces a rule by its name. `tuned=False` ignores tuning logs. `accumulate`, `bias_delta`,
        `bias` and `result_dtype` ask for a kernel that is called with these options; see `Kernel` and the operator's
        call. Raises ValueError or TypeError for wrong arguments.
        """
        options = result_dtype, accumulate, bias_delta, bias
        problem = self._asked((first_shape, second_shape, shape_input), dtype, options)
        return get_kernel(problem, *_how(target, schedule, tuned))

    def compile_async(
        self,
        first_shape: Shape,
        second_shape: Shape,
        shape_input: Any = None,
        *,
        dtype: Any = "f32",
        target: TargetLike = None,
        schedule: str | None = None,
        tuned: bool = True,
        accumulate: bool = False,
        bias_delta: bool = False,
        bias: bool = False,
        result_dtype: Any = None,
    ) -> Future[Kernel]:
        """A future of the kernel that `compile` returns, which is built in the background, several at a time.

        The future is already done if nothing has to be built; `asyncio.wrap_future` makes it awaitable. Raises
        ValueError or TypeError for wrong arguments; errors of the compiler are raised by the future. If a future is
        cancelled, or dropped before the program ends, at most the kernel that is being built is finished.
        """
        with process.lock:
            from tvmconvgrad.futures import in_background

        options = result_dtype, accumulate, bias_delta, bias
        problem = self._asked((first_shape, second_shape, shape_input), dtype, options)
        return in_background(problem, *_how(target, schedule, tuned))

    def _asked(
        self, shapes: tuple[Shape, Shape, Any], dtype: Any, options: tuple[Any, object, object, object]
    ) -> spec.Problem:
        """The problem that a kernel is asked for, checked."""
        first, second, wanted = shapes
        result_dtype, accumulate, bias_delta, bias = options
        return self.problem(
            *(first, second, shape_of(self, wanted), dtype),
            result_dtype=result_dtype,
            accumulate=accumulate,
            bias_delta=bias_delta,
            bias=bias,
        )


class _Shortcuts:
    """The operators with kernels in `_seen`. All are emptied when there are too many, and at each turn of
    runtime/memory.py, which then sees what is still called."""

    def __init__(self) -> None:
        self._operators: weakref.WeakValueDictionary[int, Compiled] = weakref.WeakValueDictionary()
        self._room = _MOST_SEEN

    def make_room(self, op: Compiled) -> None:
        """Make room for one more kernel in an operator's `_seen`: if there are too many, forget all."""
        with process.lock:
            if self._room <= 0:
                self.forget()
            self._room -= 1
            self._operators[id(op)] = op

    def forget(self) -> None:
        """Empty all `_seen`, and what `_kernel` keeps."""
        with process.lock:
            for op in self._operators.values():
                op._seen.clear()
            self._operators.clear()
            self._room = _MOST_SEEN
        _kernel.cache_clear()


_shortcuts = _Shortcuts()
memory.kernels.shortcut(_shortcuts.forget)


@functools.lru_cache(maxsize=_MOST_SEEN)
def _kernel(
    op: Compiled,
    first_shape: tuple[int, ...],
    second_shape: tuple[int, ...],
    wanted: tuple[int, ...] | None,
    dtype: str,
    epilogue: Epilogue,
    target: Target | None,
    gpu: int | None,
    generation: int,
) -> Kernel:
    """The kernel for these inputs, kept for later calls. Bundles that come into use make another `generation`, in
    which no kernel from before is found."""
    problem = replace(op.problem(first_shape, second_shape, wanted, dtype), epilogue=epilogue)
    return get_kernel(problem, target, gpu=gpu)


@functools.lru_cache(maxsize=64)
def _parsed_text(target: str) -> Target:
    return parse_target(target)


process.forgets(_parsed_text.cache_clear)


def _how(target: TargetLike, schedule: object, tuned: object) -> tuple[Target | None, str | None, bool]:
    """The target, the rule's name and `tuned` that `compile` was given, checked."""
    name, take_tuned = _schedule(schedule), parse_bool("tuned", tuned)
    return _parsed(target), name, take_tuned


def _schedule(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"schedule: {show(name)} is not a name")
    return None if name is None else plain(name)


def _parsed(target: TargetLike) -> Target | None:
    """A target; None for the default: this machine's CPU, which a bundled kernel needs no name of."""
    if not isinstance(target, str):
        return None if target is None else parse_target(target)
    text = plain(target)
    return None if text == DEFAULT else _parsed_text(text)
