"""`warmup`: builds and measures the kernels of a model before training starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tvmconvgrad.common.progress import progress_bar
from tvmconvgrad.spec.values import show
from tvmconvgrad.torch.reporting import Report, report
from tvmconvgrad.torch.state import state
from tvmconvgrad.torch.steps.building import Build
from tvmconvgrad.torch.steps.comparison import CALLS_EACH
from tvmconvgrad.torch.steps.step import Step

_PASSES = 2 * CALLS_EACH + 2  # all calls of a comparison, and two in reserve
_WITHOUT_COPIES = (torch.jit.ScriptModule, torch.nn.DataParallel)
"""What `torch.func.functional_call` refuses."""
_SECONDS = 0.05  # between two looks at the builds


def warmup(
    model: torch.nn.Module,
    *example_inputs: Any,
    backward: bool = True,
    progress: bool = True,
    **named_inputs: Any,
) -> Report:
    """Build the kernels of a model's forward and backward pass, on all CPUs, and measure them beside PyTorch's.

    Calls `model(*example_inputs, **named_inputs)` up to eleven times. Unless `backward` is False, it differentiates the
    mean square of the results each time, by the parameters and by inputs that require a gradient. Does not change the
    model's parameters, buffers and gradients, nor the state of torch's random numbers. Inputs need the shapes, types
    and memory formats of training; call it under the same `torch.autocast`, if any. `progress` shows a bar on a
    terminal. Returns the report.

    Raises TypeError if the model is no Module, or one that cannot be called on copies of its buffers (scripted or
    traced, or DataParallel), RuntimeError if nothing is enabled, and what the model raises.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, _WITHOUT_COPIES):
        expected = "expected a torch.nn.Module, and none that is scripted or traced, or DataParallel"
        raise TypeError(f"model: got {show(model)} of type {type(model).__name__}, {expected}")
    if state.settings is None:
        raise RuntimeError("nothing is enabled, expected tvmconvgrad.torch.enable() before warmup()")
    calls = {step: step.calls for step in state.steps()}
    with torch.random.fork_rng(_gpus(model, example_inputs, named_inputs)):
        with _not_waiting():
            _pass(model, example_inputs, named_inputs, backward)
            for step in state.steps():
                if step.calls > calls.get(step, 0):
                    step.ask()  # also in sizes whose kernels would be built after several calls
        _wait(progress)
        for _ in range(_PASSES):
            if not any(_is_open(step) for step in state.steps()):
                break
            _pass(model, example_inputs, named_inputs, backward)
    return report()


def _gpus(model: torch.nn.Module, *inputs: Any) -> list[int]:
    """The numbers of the GPUs that a model and its inputs are on."""
    tensors = [*model.parameters(), *model.buffers(), *tree_leaves(inputs)]
    return sorted({each.device.index for each in tensors if isinstance(each, torch.Tensor) and each.is_cuda})


def _pass(model: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any], backward: bool) -> None:
    """Call the model on copies of its buffers, and differentiate without writing into gradients."""
    parameters = {name: value.detach().requires_grad_(value.requires_grad) for name, value in model.named_parameters()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with torch.set_grad_enabled(backward):
        result = torch.func.functional_call(model, {**parameters, **buffers}, inputs, dict(named))
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        given = [leaf for leaf in tree_leaves((inputs, dict(named))) if isinstance(leaf, torch.Tensor)]
        wanted = [value for value in (*parameters.values(), *given) if value.requires_grad]
        if backward and found and wanted:
            loss = sum((leaf.abs().float() ** 2).mean() for leaf in found)
            torch.autograd.grad(loss, wanted, allow_unused=True)  # type: ignore[arg-type]


@contextlib.contextmanager
def _not_waiting() -> Iterator[None]:
    """A block without deterministic algorithms, in which no call waits for its kernel: all builds run side by side."""
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)


def _wait(progress: bool) -> None:
    """Wait until nothing is being built."""
    total = len(Build.pending)
    with progress_bar(quiet=not progress) as bar:
        while Build.pending:
            for build in list(Build.pending):
                build.poll()
            bar("kernels", total - len(Build.pending), total)
            time.sleep(_SECONDS)


def _is_open(step: Step) -> bool:
    return step.calls > 0 and step.is_open
