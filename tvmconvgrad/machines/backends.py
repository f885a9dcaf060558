"""What each kind of target supplies. All that tells one kind from another in this package begins here.

A new kind adds a Backend to BACKENDS, and the modules that it names: docs/new_target.md. They are named by strings and
imported when they are needed, since most of them import TVM.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

from tvmconvgrad.common import process


@dataclass(frozen=True)
class Backend:
    """One kind of target. A name is a module's, or "module:attribute".

    `options` are what a target of this kind can be told ("llvm -mcpu=znver3" has `mcpu`).
    """

    options: tuple[str, ...]
    parse: str
    """(given: object, options: dict) -> Target. ValueError or TypeError for options that are wrong."""
    rules: str
    """(target: Target) -> Sequence[Rule], see schedules/base.py: equally cheap ones are tried in this order."""
    compiler: str
    """A module with `compile_problem`, `build` and `compile_scheduled`, as compiler/llvm.py has them."""
    kernel: str
    """The class of kernels that users call: runtime/kernel.py's Kernel, or a subclass."""
    load: str
    """(code: bytes, facts: dict, problem: Problem, target: Target) -> the function that `kernel` calls."""
    measurer: str
    """A module that runs as a process and measures candidates of a search, as tuning/workers/measure_worker.py does."""
    is_gpu: bool = False
    """Whether tensors are in a GPU's memory."""

    @property
    def sources(self) -> tuple[str, str]:
        """The modules in which a kernel's build begins. Their text, and that of all that they import from this
        package, is part of the kernel's key in the cache (cache/sources.py)."""
        return self.compiler, self.rules.partition(":")[0]

    def get(self, name: str) -> Any:
        """What a field names: a module, or an attribute of one."""
        return _imported(getattr(self, name))


BACKENDS = {
    "llvm": Backend(
        options=("mcpu", "mattr", "mtune", "mtriple", "algorithm"),
        parse="tvmconvgrad.machines.targets:parse_cpu",
        rules="tvmconvgrad.schedules.cpu:cpu_rules",
        compiler="tvmconvgrad.compiler.llvm",
        kernel="tvmconvgrad.runtime.kernel:Kernel",
        load="tvmconvgrad.runtime.native:load_kernel",
        measurer="tvmconvgrad.tuning.workers.measure_worker",
    ),
    "cuda": Backend(
        options=("arch", "fpmath_mode"),
        parse="tvmconvgrad.machines.targets:parse_gpu",
        rules="tvmconvgrad.schedules.cuda:cuda_rules",
        compiler="tvmconvgrad.compiler.cuda.compiler",
        kernel="tvmconvgrad.runtime.cuda.kernel:CudaKernel",
        load="tvmconvgrad.runtime.cuda.function:load_kernel",
        measurer="tvmconvgrad.tuning.workers.measure_worker_cuda",
        is_gpu=True,
    ),
}
"""By the kind of target, the first word of its text."""


@functools.lru_cache(maxsize=256)
def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    with process.lock:
        found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found
