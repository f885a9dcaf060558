"""Which instructions of MetaSchedule's traces are replayed from a file.

A trace is a program: it may, for one, mark a loop with C code to be compiled. So only what our own candidates and the
stock space of a CPU are made of is taken from a file.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

OURS = frozenset({"GetSBlock", "Annotate", "SampleCategorical"})
STOCK = OURS | {
    *("AddUnitLoop", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline", "DecomposeReduction", "EnterPostproc"),
    *("Fuse", "GetChildBlocks", "GetConsumers", "GetLoops", "GetProducers", "Parallel", "RFactor", "Reorder"),
    *("ReverseComputeAt", "ReverseComputeInline", "SampleComputeLocation", "SamplePerfectTile", "Split"),
    *("Unannotate", "Unroll", "Vectorize"),
}
_NOTES = ("tvmconvgrad.", "meta_schedule.")
_PRAGMAS = ("pragma_auto_unroll_max_step", "pragma_unroll_explicit")


def check(trace: Any, allowed: Collection[str]) -> None:
    """Raise ValueError for a trace, as JSON's types, with any other instruction, or another annotation."""
    try:
        instructions, _ = trace
        for kind, _, attributes, _ in instructions:
            if kind not in allowed:
                raise ValueError(f"a trace has the instruction {str(kind)[:40]!r}")
            if kind in ("Annotate", "Unannotate") and not _is_harmless(attributes[0]):
                raise ValueError(f"a trace has the annotation {str(attributes[0])[:40]!r}")
    except (TypeError, IndexError) as reason:
        raise ValueError(f"it is no trace: {reason}") from None


def _is_harmless(name: object) -> bool:
    return isinstance(name, str) and (name.startswith(_NOTES) or name in _PRAGMAS)
