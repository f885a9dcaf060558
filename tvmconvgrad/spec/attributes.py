"""The attributes of a constructor call: which values are allowed, and which belong together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvmconvgrad.spec.values import (
    MAX_SPATIAL_RANK,
    Shape,
    check_count,
    parse_choice,
    parse_int,
    parse_ints,
    plain,
    show,
)

AUTO_PADS = ("none", "same_upper", "same_lower", "valid")
DATA_FORMATS = ("NXC", "NCX")


def parse_attributes(
    operator: str, given: Mapping[str, object], spelled: Callable[[str], str], filter_formats: tuple[str, ...]
) -> dict[str, object]:
    """Return the attributes checked and in their plain form, under their old names; None is "not given".

    Raises TypeError or ValueError in the spelling that `spelled` gives for a name.
    """
    for name in ("strides", "dilations"):
        if given[name] is None:
            raise TypeError(f"{operator}: {name} is required")
    strides = _parse_strides(given["strides"])
    parsed: dict[str, object] = {"strides": strides}
    parsed["dilations"] = _parse_per_axis("dilations", given, strides, low=1)
    parsed["auto_pad"] = auto_pad = _parse_auto_pad(given["auto_pad"])
    for name in ("pads_begin", "pads_end"):
        if auto_pad == "none" and given[name] is None:
            raise ValueError(f"{name}: missing; required when auto_pad is none")
        parsed[name] = _parse_per_axis(name, given, strides, low=0) if auto_pad == "none" else None
    if "output_padding" in given:
        parsed["output_padding"] = _parse_per_axis("output_padding", given, strides, low=0)
    parsed["groups"] = parse_int("groups", given["groups"], low=1)
    parsed["data_format"] = parse_choice("data_format", given["data_format"], DATA_FORMATS)
    filter_format = "XIO" if given["filter_format"] is None else given["filter_format"]
    parsed["filter_format"] = parse_choice(spelled("filter_format"), filter_format, filter_formats)
    for name in ("filter_shape", "output_shape"):
        if name in given:
            parsed[name] = _parse_shape(spelled(name), given[name], strides)
    return parsed


def _parse_strides(value: object) -> Shape:
    strides = _one_per_axis("strides", value, low=1)
    if not 1 <= len(strides) <= MAX_SPATIAL_RANK:
        expected = f"1 to {MAX_SPATIAL_RANK}, one per spatial axis"
        raise ValueError(f"strides: {strides} has {len(strides)} entries, expected {expected}")
    return strides


def _parse_per_axis(name: str, given: Mapping[str, object], strides: Shape, *, low: int) -> Shape | None:
    if given[name] is None:
        return None
    values = _one_per_axis(name, given[name], low=low, rank=len(strides))
    check_count(name, values, len(strides), f"one per spatial axis as in strides {strides}")
    return values


def _one_per_axis(name: str, value: object, *, low: int, rank: int = 2) -> Shape:
    """Parse a list. A single int, which frameworks take for all axes, is none: the specification wants s64[]."""
    if type(value) is int:
        example = show((value,) * rank)
        raise TypeError(f"{name}: got {show(value)}, expected one int per spatial axis, for example {name}={example}")
    return parse_ints(name, value, low=low)


def _parse_shape(name: str, value: object, strides: Shape) -> Shape | None:
    if value is None:
        return None
    shape = parse_ints(name, value, low=0)
    check_count(name, shape, len(strides) + 2, f"two more than strides {strides}")
    return shape


def _parse_auto_pad(value: object) -> str:
    if value is None:
        return "none"
    return parse_choice("auto_pad", plain(value).lower() if isinstance(value, str) else value, AUTO_PADS)
