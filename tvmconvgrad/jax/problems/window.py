"""One spatial axis of a sum: x = stride * y + dilation * w - pad, where each letter is an index of that tensor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The numbers that an operator takes, which are not negative.

    `cut_begin` and `cut_end` elements at the ends of x are in no product: the operator gets an x without them. `rest`
    elements more at its end are in none either, but fewer than a stride, and it gets those.
    """

    pad_begin: int
    pad_end: int
    cut_begin: int
    cut_end: int
    rest: int


def window(x: int, y: int, w: int, stride: int, dilation: int, pad: int) -> Window:
    """The numbers for the sizes of x, y and the filter w. `pad`, in elements before x, may be negative."""
    end = stride * (y - 1) + dilation * (w - 1) + 1 - pad - x
    is_within_stride = -stride < end < 0
    return Window(
        pad_begin=max(pad, 0),
        pad_end=max(end, 0),
        cut_begin=max(-pad, 0),
        cut_end=0 if is_within_stride else max(-end, 0),
        rest=-end if is_within_stride else 0,
    )
