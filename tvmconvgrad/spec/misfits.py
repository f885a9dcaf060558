"""What to say where the sizes of one spatial axis do not fit together; None where they do.

Every answer reads on from "... axis 1 (spatial, NXC) is 27, ".
"""

from __future__ import annotations

from tvmconvgrad.spec.pads import PadAxis, same_size


def kernel_misfit(axis: PadAxis, x: int, x_name: str) -> str | None:
    """Judge the kernel against the padded x: no Convolution exists where it exceeds that."""
    begin, end = axis.explicit
    if axis.same or axis.extent <= x + begin + end:
        return None
    span = f" for its span of {axis.extent}" if axis.dilation > 1 else ""
    return f"expected at most {x + begin + end} = {x} + {begin} + {end}{span}, {_source(axis, x_name, x)}"


def y_misfit(axis: PadAxis, y: int, x: int, x_name: str) -> str | None:
    """Judge the y that a caller gives against the one to which a Convolution takes x."""
    expected = axis.convolution_y(x)
    if y == expected:
        return None
    if axis.same:
        rule = f"ceil({x}/{axis.stride})"
    else:
        begin, end = axis.explicit
        rule = f"({x} + {begin} + {end} - {axis.extent})//{axis.stride} + 1"
    return f"expected {expected} = {rule}, {_source(axis, x_name, x)}"


def x_misfit(axis: PadAxis, y: int, x: int, y_name: str, *, transposed: bool) -> str | None:
    """Judge the x that a caller gives against the ones that y allows.

    Without output_padding, x may have elements at its end that no tap reaches: up to strides - 1 for a
    Convolution, any number for a ConvTranspose.
    """
    source = _source(axis, y_name, y)
    if axis.same and y != same_size(x, axis.stride):
        least, most = max(0, axis.stride * (y - 1) + 1), axis.stride * y
        return f"expected {_span(least, most)}, so that ceil(x/{axis.stride}) = {y}, {source}"
    pads = axis.pads(y, x)
    least = axis.transposed_x(y, pads)
    rule = _transposed_rule(axis, y, pads)
    if axis.output_padding is not None:
        return None if x == least else f"expected {least} = {rule}, {source}"
    if transposed:
        return None if x >= least else f"expected at least {least} = {rule}, {source}"
    most = least + axis.stride - 1
    unreached = f" + (0 to {axis.stride - 1})" if axis.stride > 1 else ""
    return None if least <= x <= most else f"expected {_span(least, most)} = {rule}{unreached}, {source}"


def output_padding_misfit(axis: PadAxis, x: int) -> str | None:
    """Judge a ConvTranspose's x against a given output_padding: some whole y of 0 or more must give it."""
    y = axis.y_of(x)
    pads = axis.pads(y, x)
    if axis.output_padding is None or (y >= 0 and axis.transposed_x(y, pads) == x):
        return None
    if axis.same:
        return f"expected {axis.transposed_x(y, pads)} = {_transposed_rule(axis, y, pads)}, {_source(axis)}"
    around = [axis.transposed_x(max(0, y) + i, pads) for i in (0, 1)]
    expected = " or ".join(str(size) for size in around if size >= 0)
    return f"expected {expected}, which are {_transposed_rule(axis, 'x', pads)}, {_source(axis)}"


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _transposed_rule(axis: PadAxis, y: int | str, pads: tuple[int, int]) -> str:
    added = "" if axis.output_padding is None else f" + {axis.output_padding}"
    return f"{axis.stride}*({y} - 1) + {axis.extent} - {pads[0]} - {pads[1]}{added}"


def _source(axis: PadAxis, name: str = "", size: int | None = None) -> str:
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
