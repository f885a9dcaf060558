"""The files of a bundle that are text: the templates beside this file, filled from the manifest."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from math import prod
from typing import Any

import jinja2

from tvmconvgrad.bundles.manifest import BundledKernel, Manifest
from tvmconvgrad.bundles.statuses import STATUSES
from tvmconvgrad.deploy.names import comment
from tvmconvgrad.runtime.native import DL_DTYPES, OPENMP_SYMBOL, PYTHON_SYMBOL
from tvmconvgrad.spec import Gradient, Problem
from tvmconvgrad.spec.dtypes import ITEM_BYTES
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.spec.values import Shape

ALIGNMENT = 64
"""Of a workspace, and of each piece of it: ALIGNMENT of csrc/memory.c."""

_C_TYPES = {"f32": "float", "f16": "uint16_t", "bf16": "uint16_t"}
# the bits of -2 to 2
_SMALL_INTEGERS = {
    "f32": ("-2.0f", "-1.0f", "0.0f", "1.0f", "2.0f"),
    "f16": ("0xC000", "0xBC00", "0x0000", "0x3C00", "0x4000"),
    "bf16": ("0xC000", "0xBF80", "0x0000", "0x3F80", "0x4000"),
}


def render(template: str, manifest: Manifest, checks: Mapping[str, str]) -> str:
    """A template's text for a bundle. `checks` is a C expression for each target: whether the CPU has it."""
    kernels = [_kernel(manifest, kernel) for kernel in manifest.kernels]
    context = {
        "name": manifest.name,
        "caps": manifest.name.upper(),
        "version": manifest.versions["tvmconvgrad"],
        "architecture": manifest.architecture,
        "targets": [{"text": entry.target, "check": checks[entry.target]} for entry in manifest.targets],
        "has_archive": any(file.endswith(".a") for file in manifest.files),
        "alignment": ALIGNMENT,
        "statuses": [{"word": word, "text": text} for word, text in STATUSES.items()],
        "sixteen_bits": any(kernel.dtype != "f32" for kernel in manifest.kernels),
        "has_options": any(kernel.epilogue for kernel in manifest.kernels),
        "kernels": kernels,
        "small_integers": _SMALL_INTEGERS,
        "python_symbol": PYTHON_SYMBOL,
        "openmp_symbol": OPENMP_SYMBOL,
    }
    return _environment().get_template(template).render(context)


def symbol(kernel: BundledKernel, place: int) -> str:
    """What an object's entry is called after __tvm_ffi_: the kernel's code for the target at a place."""
    return f"{kernel.function}_target_{place}"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tvmconvgrad.deploy"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # it is not HTML: comment and c_string say how
    )
    environment.filters["comment"] = comment
    environment.filters["c_string"] = c_string
    return environment


def c_string(text: str) -> str:
    """A literal of C; whatever is not plain ASCII is an escape."""
    plain = re.sub(r"[^A-Za-z0-9 .,:;=+_/()-]", lambda odd: "".join(f"\\{byte:03o}" for byte in odd[0].encode()), text)
    return f'"{plain}"'


def _kernel(manifest: Manifest, kernel: BundledKernel) -> dict[str, Any]:
    problem, same = kernel.problem, reduced(kernel.problem)
    return {
        "name": kernel.name,
        "function": kernel.function,
        "caps": kernel.function.upper(),
        "layer": kernel.layer,
        "operator": kernel.operator,
        "dtype": kernel.dtype,
        "c_type": _C_TYPES[kernel.dtype],
        "result_c_type": _C_TYPES[problem.output_dtype],
        "options": "".join(f", {name} {value}" for name, value in problem.epilogue.words),
        "tensors": _tensors(problem),
        "bias": _bias(problem),
        "reads_bias": problem.epilogue.bias,
        "merged_shapes": [shape for shape, _ in same.arguments],
        "attributes": _attributes(problem),
        "codes": [
            {"target": entry.target, "schedule": entry.schedule, "symbol": symbol(kernel, place)}
            for place, entry in enumerate(kernel.codes)
        ],
        "workspace_bytes": kernel.workspace_bytes,
        "workspace_bytes_per_thread": kernel.workspace_bytes_per_thread,
    }


def _tensors(problem: Problem) -> list[dict[str, Any]]:
    names = (*problem.input_names, problem.output_name, _bias_name(problem))
    data, weights = problem.data_format, problem.filter_format
    layouts = (data, data, weights) if problem.gradient is Gradient.FILTER else (data, weights, data)
    found = zip(names, (*layouts, "O"), problem.arguments)
    return [_tensor(name, layout, *argument) for name, layout, argument in found]


def _bias_name(problem: Problem) -> str:
    return "bias" if problem.epilogue.bias else "bias_delta"


def _bias(problem: Problem) -> dict[str, str] | None:
    """The argument after the result, with the types of its pointer and of its memory; None if there is none."""
    if not (problem.epilogue.bias or problem.epilogue.bias_delta):
        return None
    memory = _C_TYPES[problem.arguments[-1][1]]
    const = "const " if problem.epilogue.bias else ""
    return {"name": _bias_name(problem), "c_type": f"{const}{memory}", "memory": memory}


def _tensor(name: str, layout: str, shape: Shape, dtype: str) -> dict[str, Any]:
    code, bits = DL_DTYPES[dtype]
    return {
        "name": name,
        "shape": shape,
        "layout": layout,
        "size": prod(shape),
        "bytes": prod(shape) * ITEM_BYTES[dtype],
        "dtype_code": code,
        "dtype_bits": bits,
    }


def _attributes(problem: Problem) -> list[str]:
    geometry = problem.geometry
    rows = ("strides", "dilations", "pads_begin", "pads_end")
    lists = (f"{name} {'x'.join(map(str, getattr(geometry, name)))}" for name in rows)
    return [", ".join([*lists, f"groups {geometry.groups}"])]
