"""Which instructions of a MetaSchedule trace may be replayed from a file.

A trace is a program: it may, for example, annotate a loop with C code to be compiled. So a trace from a file may have
only the instructions that our own candidates, and MetaSchedule's default space for CPUs, are made of.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

OURS = frozenset({"GetSBlock", "Annotate", "SampleCategorical"})
DEFAULT_SPACE = OURS | {
    *("AddUnitLoop", "CacheRead", "CacheWrite", "ComputeAt", "ComputeInline", "DecomposeReduction", "EnterPostproc"),
    *("Fuse", "GetChildBlocks", "GetConsumers", "GetLoops", "GetProducers", "Parallel", "RFactor", "Reorder"),
    *("ReverseComputeAt", "ReverseComputeInline", "SampleComputeLocation", "SamplePerfectTile", "Split"),
    *("Unannotate", "Unroll", "Vectorize"),
}
_NOTES = ("tvmconvgrad.", "meta_schedule.")
_PRAGMAS = ("pragma_auto_unroll_max_step", "pragma_unroll_explicit")


def check(trace: Any, allowed: Collection[str]) -> None:
    """Raise ValueError if a trace, as parsed from JSON, has an instruction that is not `allowed`, or an unknown
    annotation."""
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
