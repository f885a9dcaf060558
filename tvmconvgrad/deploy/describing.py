"""What goes into a bundle, and how its manifest describes it."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any

from tvmconvgrad.bundles.manifest import BundledKernel, BundleTarget, File, Manifest
from tvmconvgrad.deploy.names import identifier, unique
from tvmconvgrad.layers import Layer, LayerGradient
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.version import __version__

SYSTEM = "linux"


@dataclass(frozen=True)
class Wanted:
    """A gradient of a layer, and the names that it has in a bundle and in C."""

    name: str
    function: str
    gradient: LayerGradient


def name_all(bundle: str, gradients: Sequence[LayerGradient]) -> list[Wanted]:
    """Names for gradients: the layer's, the type where the layer is there in several, the options, and what the
    gradient is by."""
    types: dict[Layer, set[str]] = {}
    for gradient in gradients:
        types.setdefault(gradient.layer, set()).add(gradient.dtype)
    ends = [_dtype_end(gradient, types) + _options_end(gradient) for gradient in gradients]
    # the kind comes last, so that no name of a layer makes one of the bundle's other functions
    names = unique(f"{identifier(g.layer.name)}{end}_{g.kind}" for g, end in zip(gradients, ends))
    return [Wanted(name, f"{bundle}_{name}", gradient) for name, gradient in zip(names, gradients)]


def _dtype_end(gradient: LayerGradient, types: Mapping[Layer, AbstractSet[str]]) -> str:
    return f"_{gradient.dtype}" if len(types[gradient.layer]) > 1 else ""


def _options_end(gradient: LayerGradient) -> str:
    """The options of a gradient's epilogue: "_f32_accumulate_bias_delta"."""
    return "".join(f"_{value if name == 'result_dtype' else name}" for name, value in gradient.epilogue.words)


def without_code(wanted: Wanted) -> BundledKernel:
    """A kernel's description before it is compiled."""
    problem, operator = wanted.gradient.problem, wanted.gradient.operator
    names = (*problem.input_names, problem.output_name)
    return BundledKernel(
        name=wanted.name,
        function=wanted.function,
        layer=wanted.gradient.layer.name,
        operator=problem.operator,
        attributes=_attributes(operator),
        shapes=dict(zip(names, (*problem.input_shapes, problem.output_shape))),
        dtype=problem.dtype,
        epilogue=problem.epilogue.to_dict(),
        workspace_bytes=0,
        workspace_bytes_per_thread=0,
        codes=(),
    )


def libraries(name: str, static: bool) -> list[str]:
    """The files of a bundle's libraries, the shared one first."""
    return [f"lib{name}.so", *([f"lib{name}.a"] if static else [])]


def describe(
    name: str,
    kernels: Sequence[BundledKernel],
    requires: Mapping[Target, AbstractSet[str]],
    architecture: str,
    libraries: Sequence[str],
) -> Manifest:
    """The manifest, whose files have no hashes yet."""
    packages = ("apache-tvm", "apache-tvm-ffi")
    versions = {package: importlib.metadata.version(package) for package in packages}
    return Manifest(
        name=name,
        library=libraries[0] if libraries else None,
        architecture=architecture,
        system=SYSTEM,
        versions={"tvmconvgrad": __version__, **versions},
        targets=tuple(BundleTarget(str(target), tuple(sorted(needs))) for target, needs in requires.items()),
        files=dict.fromkeys(libraries, File(0, "")),
        kernels=tuple(kernels),
    )


def _attributes(operator: Any) -> dict[str, Any]:
    """An operator's attributes that are not left out, under their old names."""
    given = ((field.name, getattr(operator, field.name)) for field in fields_of(operator) if field.init)
    return {name: value for name, value in given if value is not None}
