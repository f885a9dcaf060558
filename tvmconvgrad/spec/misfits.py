"""What to say where the sizes of one spatial axis do not fit together; None where they do.

Every answer reads on from "... axis 1 (spatial, NXC) is 27, ".
"""

from __future__ import annotations

from tvmconvgrad.spec.pads import Axis, same_size


def kernel_misfit(axis: Axis, y: int, y_name: str) -> str | None:
    """Judge the kernel against the padded y: no Convolution exists where it exceeds that."""
    begin, end = axis.explicit
    if axis.same or axis.extent <= y + begin + end:
        return None
    span = f" for its span of {axis.extent}" if axis.dilation > 1 else ""
    return f"expected at most {y + begin + end} = {y} + {begin} + {end}{span}, {_source(axis, y_name, y)}"


def small_misfit(axis: Axis, x: int, y: int, y_name: str) -> str | None:
    """Judge the x that a caller gives against the one to which a Convolution takes y."""
    expected = axis.small(y)
    if x == expected:
        return None
    if axis.same:
        rule = f"ceil({y}/{axis.stride})"
    else:
        begin, end = axis.explicit
        rule = f"({y} + {begin} + {end} - {axis.extent})//{axis.stride} + 1"
    return f"expected {expected} = {rule}, {_source(axis, y_name, y)}"


def big_misfit(axis: Axis, x: int, y: int, x_name: str, *, transposed: bool) -> str | None:
    """Judge the y that a caller gives against the ones that x allows.

    Without output_padding, y may have elements at its end that no tap reaches: up to strides - 1 for a
    Convolution, any number for a ConvTranspose.
    """
    source = _source(axis, x_name, x)
    if axis.same and x != same_size(y, axis.stride):
        least, most = max(0, axis.stride * (x - 1) + 1), axis.stride * x
        return f"expected {_span(least, most)}, so that ceil(y/{axis.stride}) = {x}, {source}"
    pads = axis.pads(x, y)
    least = axis.big(x, pads)
    rule = _transposed_rule(axis, x, pads)
    if axis.output_padding is not None:
        return None if y == least else f"expected {least} = {rule}, {source}"
    if transposed:
        return None if y >= least else f"expected at least {least} = {rule}, {source}"
    most = least + axis.stride - 1
    unreached = f" + (0 to {axis.stride - 1})" if axis.stride > 1 else ""
    return None if least <= y <= most else f"expected {_span(least, most)} = {rule}{unreached}, {source}"


def whole_misfit(axis: Axis, y: int) -> str | None:
    """Judge a ConvTranspose's y against a given output_padding: some whole x of 0 or more must give it."""
    x = axis.whole_small(y)
    pads = axis.pads(x, y)
    if axis.output_padding is None or (x >= 0 and axis.big(x, pads) == y):
        return None
    if axis.same:
        return f"expected {axis.big(x, pads)} = {_transposed_rule(axis, x, pads)}, {_source(axis)}"
    around = [axis.big(max(0, x) + i, pads) for i in (0, 1)]
    expected = " or ".join(str(size) for size in around if size >= 0)
    return f"expected {expected}, which are {_transposed_rule(axis, 'x', pads)}, {_source(axis)}"


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _transposed_rule(axis: Axis, x: int | str, pads: tuple[int, int]) -> str:
    added = "" if axis.output_padding is None else f" + {axis.output_padding}"
    return f"{axis.stride}*({x} - 1) + {axis.extent} - {pads[0]} - {pads[1]}{added}"


def _source(axis: Axis, name: str = "", size: int | None = None) -> str:
    """Say where the numbers of a rule come from."""
    parts = [] if size is None else [f"{name}'s {size}"]
    if axis.auto_pad == "none":
        parts += [f"pads_begin {axis.explicit[0]}", f"pads_end {axis.explicit[1]}"]
    else:
        parts += [f"auto_pad {axis.auto_pad}"]
    parts += [f"kernel {axis.kernel}", f"dilations {axis.dilation}", f"strides {axis.stride}"]
    if axis.output_padding is not None:
        parts += [f"output_padding {axis.output_padding}"]
    return f"from {', '.join(parts)}"
