"""All that is taken from JAX's private modules. Anything may move there: an ImportError then says which version did."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir

PLATFORM = "cpu"

try:
    from jax._src.interpreters.mlir import _platform_specific_lowerings
    from jax._src.sharding_impls import ShardingContext, SPMDAxisContext

    _primitive = jax.lax.conv_general_dilated_p
    _current = _platform_specific_lowerings[PLATFORM][_primitive]
except (ImportError, AttributeError, KeyError) as reason:
    raise ImportError(
        f"tvmconvgrad.jax: JAX {jax.__version__} keeps its lowering rules elsewhere ({reason}), expected 0.7.2 to 0.10"
    ) from reason


def lowering_rule() -> Any:
    """The rule by which JAX lowers a convolution for CPUs now."""
    entry = _platform_specific_lowerings[PLATFORM][_primitive]
    return getattr(entry, "rule", entry)  # older versions keep the function itself


def set_lowering_rule(rule: Any) -> None:
    """Let JAX lower convolutions for CPUs by another rule, in what is compiled from now on.

    Where JAX lowers equal operations once, in a function of their own, the rule would not see what made its operands.
    """
    inline = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
    mlir.register_lowering(_primitive, rule, platform=PLATFORM, **inline)


def is_partitioned(context: Any) -> bool:
    """Whether XLA will split the module that is being lowered over several devices, in which it cannot split a call.

    Not so for the body of a `shard_map` or `pmap`, which is one device's already.
    """
    axes = context.module_context.axis_context
    if isinstance(axes, SPMDAxisContext):
        return axes.manual_axes != frozenset(axes.mesh.axis_names)
    return isinstance(axes, ShardingContext) and axes.num_devices > 1


def is_for_export(context: Any) -> bool:
    """Whether `jax.export` lowers a module, for whatever process and machine."""
    return bool(context.module_context.lowering_parameters.for_export)


def reversed_operand(value: Any, axes: Sequence[int]) -> Any:
    """What a value is the reverse of along just these axes; None if it is no such reverse."""
    operation = getattr(value.owner, "operation", value.owner)
    if getattr(operation, "name", "") != "stablehlo.reverse":
        return None
    if sorted(operation.attributes["dimensions"]) != sorted(axes):
        return None
    return operation.operands[0]
