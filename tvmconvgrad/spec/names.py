"""Both spellings of every name: oneDNN's old one (...Backprop...) and its new one (...Backward...)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvmconvgrad.spec.values import nearest, show

ATTRIBUTES = {"filter_format": "weights_format", "filter_shape": "weights_shape", "output_shape": "dst_shape"}

NEW_NAMES = {
    **ATTRIBUTES,
    "input_forward": "src",
    "output_delta": "diff_dst",
    "filter": "weights",
    "filter_delta": "diff_weights",
    "input_delta": "diff_src",
}


def merge_spellings(operator: str, given: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the attributes under their old names, and the names that the caller chose where there are two.

    None stands for an attribute that was not passed. Raises TypeError for both spellings of one attribute.
    """
    merged = dict(given)
    chosen = []
    for old, new in ATTRIBUTES.items():
        if new not in merged:
            continue
        value = merged.pop(new)
        if value is not None and merged[old] is not None:
            both = f"{old} {show(merged[old])} and {new} {show(value)}"
            raise TypeError(f"{operator}: {both} are two spellings of one attribute, expected one of them")
        if value is not None:
            merged[old] = value
        if merged[old] is not None:
            chosen.append(old if value is None else new)
    return merged, tuple(chosen)


def refuse_unknown(operator: str, unknown: Collection[str], allowed: Collection[str]) -> None:
    """Raise TypeError where an attribute is none of `allowed`."""
    for name in unknown:
        unexpected = f"unknown attribute {show(name)}{nearest(name, allowed)}"
        raise TypeError(f"{operator}: {unexpected}, expected one of {', '.join(allowed)}")
