"""`tvmconvgrad.build`: what a user asks for, checked; then the compile service is asked for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvmconvgrad.bundles.manifest import CUDA
from tvmconvgrad.deploy.names import bundle_name, check_bundle_name
from tvmconvgrad.deploy.replacing import check_replaceable
from tvmconvgrad.machines.targets import Target, parse_target, target_architecture, target_system
from tvmconvgrad.spec.epilogue import check_device, parse_epilogue

if TYPE_CHECKING:
    from tvmconvgrad.layers import Layer, LayerGradient

Source = str | os.PathLike[str]
TargetLike = str | Mapping[str, Any] | Target | None


def build(
    layers: Source | Sequence[Source] | Sequence[Layer],
    folder: Source,
    *,
    targets: TargetLike | Sequence[TargetLike] = None,
    name: str | None = None,
    static: bool = False,
    batch: int | None = None,
    dtypes: str | Sequence[str] | None = None,
    data_format: str = "NXC",
    filter_format: str | None = None,
    only: str | None = None,
    substring: str = "",
    accumulate: bool = False,
    bias_delta: bool = False,
    bias: bool = False,
    result_dtype: str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Path:
    """Compile the gradients of layers into a bundle: a folder with a library that needs neither TVM nor Python.

    `layers` is the name of a suite, a file of layers, several of them, or a list of Layer. The bundle has a kernel for
    each of the two gradients (or `only` "filters", "data" or "forward") of each layer (with `substring` in its name),
    in the layer's own type, or in each of `dtypes` in its place. Each is compiled for each of `targets`, by default
    this machine's CPU; the best one is chosen where it runs. `name` is the library's, and begins all names in C.
    `static` adds a static library. A bundle for GPUs ("cuda -arch=sm_90") is used from Python alone, and has neither
    library nor header. `accumulate`, `bias_delta`, `bias` and `result_dtype` are options of all its kernels, as of
    an operator's `compile`; those for GPUs have none.

    The bundle appears in one step, and replaces a bundle that was there. Returns the folder. Raises ValueError or
    TypeError for what does not fit, MissingLinker without a C compiler, MissingToolkit without CUDA's for a GPU,
    MissingCompiler and CompilerFailed where no process can compile, OSError where it cannot be written.
    """
    types = None if dtypes is None else _listed(dtypes)
    plain, source = _gradients(layers, batch, types, data_format, filter_format, only, substring)
    options = result_dtype, accumulate, bias_delta, bias
    gradients = [replace(one, epilogue=parse_epilogue(one.dtype, one.kind == "filters", *options)) for one in plain]
    found = [parse_target(target) for target in _listed(targets)]
    architecture = _architecture(found)
    chosen = bundle_name(source) if name is None else check_bundle_name(name)
    path = Path(folder)

    check_replaceable(path)
    if architecture == CUDA:
        if static:
            raise ValueError("static: a bundle for GPUs has no library")
        for gradient in gradients:
            check_device(gradient.epilogue, is_gpu=True)
        from tvmconvgrad.deploy.bundle_cuda import build_cuda_bundle

        build_cuda_bundle(chosen, gradients, found, path, progress)
    else:
        from tvmconvgrad.deploy.bundle import build_bundle, make_plan

        build_bundle(make_plan(chosen, gradients, found, architecture, static), path, progress)
    return path.absolute()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _gradients(
    layers: Any,
    batch: int | None,
    dtypes: Sequence[str] | None,
    data_format: str,
    filter_format: str | None,
    only: str | None,
    substring: str,
) -> tuple[list[LayerGradient], str]:
    """The gradients, and what they were named by."""
    from tvmconvgrad.layers import select_gradients

    sources = [os.fspath(source) if isinstance(source, os.PathLike) else source for source in _listed(layers)]
    found = select_gradients(
        sources,
        batch=batch,
        dtypes=dtypes,
        data_format=data_format,
        filter_format=filter_format,
        only=only,
        substring=substring,
    )
    return [gradient for _, gradient in found], found[0][0]


def _architecture(targets: Sequence[Target]) -> str:
    """The one that all targets are of; ValueError for several, for one that is there twice, and for none of Linux."""
    if not targets:
        raise ValueError("targets: is empty, expected at least one")
    for place, target in enumerate(targets):
        if target in targets[:place]:
            raise ValueError(f"targets: {str(target)!r} is there twice")
        for other in targets[:place]:
            if replace(other, algorithm=target.algorithm, fpmath_mode=target.fpmath_mode) == target:
                raise ValueError(f"targets: {str(other)!r} and {str(target)!r} are for one processor, expected one")
        if target_system(target) != "linux":
            raise ValueError(f"targets: {str(target)!r} is for {target_system(target)}, expected Linux")
    architectures = {CUDA if target.kind == CUDA else target_architecture(target): target for target in targets}
    if len(architectures) > 1:
        one, other = list(architectures.values())[:2]
        raise ValueError(
            f"targets: {str(one)!r} and {str(other)!r} are of different architectures, expected a bundle each"
        )
    return next(iter(architectures))
