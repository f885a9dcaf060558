"""benchdnn's problem descriptors: gXmbX_icXihX..._n"name", as convolutions.

Convolution lists: i is x. Deconvolution lists: i is the transposed convolution's input, y.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from tests.support.cases.case import Case
from tests.support.cases.convolution import Convolution, Shape
from tests.support.oracles import data

_ENTRY = re.compile(r"(g|mb|ic|oc|[iokspd][dhw])(\d+)")
MOST_FLOPS, MOST_BYTES = 2e8, 16e6
"""What one problem may cost: the minibatch is cut to fit, down to 1."""


class Inexpressible(ValueError):
    """A descriptor that no choice of the operators' attributes describes."""


@dataclass(frozen=True)
class Descriptor:
    """One line of a list."""

    source: str
    """File and line, "conv/shapes_1d:2"."""
    text: str
    deconvolution: bool

    def convolution(self) -> Convolution:
        """The sizes; raises Inexpressible for a negative leading pad. pads_end is never negative."""
        text = self.text.partition('n"')[0].replace("_", "")
        if _ENTRY.sub("", text):
            raise ValueError(f"{self}: {_ENTRY.sub('', text)!r} is no entry of a descriptor")
        sizes = {key: int(value) for key, value in _ENTRY.findall(text)}
        axes = [_Axis.of(sizes, letter) for letter in _axis_letters(sizes)]
        solved = [axis.solved(self.deconvolution) for axis in axes]
        x, y, k, strides, dilations, begin, end = (tuple(column) for column in zip(*solved, strict=True))
        if min(begin) < 0:
            raise Inexpressible(f"{self.text}: a negative leading pad")
        y_channels, x_channels = ("ic", "oc") if self.deconvolution else ("oc", "ic")
        groups, batch = sizes.get("g", 1), sizes.get("mb", 2)
        return Convolution(batch, groups, sizes[x_channels], sizes[y_channels], x, y, k, strides, dilations, begin, end)

    def case(self, result: str, data_format: str = "NXC", filter_format: str = "XIO") -> Case:
        """The filter's gradient (result w) or the data's (result d), the minibatch cut to what one can afford.

        Raises Inexpressible.
        """
        conv = capped(self.convolution())
        beyond = any(b >= s for b, s in zip(conv.beyond, conv.strides, strict=True))
        family = "ConvTranspose" if self.deconvolution else "Convolution"
        operator = family + ("BackpropFilters" if result == "w" else "BackpropData")
        if beyond and operator == "ConvolutionBackpropFilters":
            raise Inexpressible(f"{self.text}: a remainder of a stride or more")
        padding = conv.beyond if beyond else None
        return Case(operator, conv, data_format, filter_format, output_padding=padding)

    def __str__(self) -> str:
        return f"{self.source} {self.text}"


def capped(conv: Convolution) -> Convolution:
    """The same with a minibatch for which time and memory stay within bounds, and some sum stays exact in f32."""
    x, y, _ = (conv.resized(1).shapes[name] for name in "xyw")
    one = 4 * (prod(x) + prod(y))
    batch = max(1, min(conv.batch, int(MOST_FLOPS // max(1, conv.resized(1).flops)), int(MOST_BYTES // max(1, one))))
    return conv.resized(batch)


def descriptors() -> list[Descriptor]:
    """All descriptors of all lists, in the order of their files; none where the folder is missing."""
    folder = Path(data.data_folder(), "shapes")
    return [
        Descriptor(f"{kind}/{path.name}:{number}", line, kind == "deconv")
        for kind in ("conv", "deconv")
        for path in sorted((folder / kind).glob("shapes_*"))
        for number, line in enumerate(map(_content, path.read_text().splitlines()), start=1)
        if line
    ]


def _content(line: str) -> str:
    """A line without comment and options."""
    words = [word for word in line.partition("#")[0].split() if not word.startswith("--")]
    return words[-1] if words else ""


def _axis_letters(sizes: dict[str, int]) -> list[str]:
    """For each axis the letter whose entries describe it: its own, or that of the next higher axis."""
    own = [letter for letter in "dhw" if f"i{letter}" in sizes or f"o{letter}" in sizes]
    highest = "dhw".index(own[0])
    letters: list[str] = []
    for letter in "dhw"[highest:]:
        letters.append(letter if letter in own else letters[-1])
    return letters


@dataclass(frozen=True)
class _Axis:
    """What a line says about one axis; None where it says nothing."""

    i: int | None
    o: int | None
    k: int
    stride: int
    dilation: int
    pad: int | None

    @classmethod
    def of(cls, sizes: dict[str, int], letter: str) -> _Axis:
        dilation = sizes.get(f"d{letter}", 0) + 1
        kernel, stride = sizes.get(f"k{letter}", 1), sizes.get(f"s{letter}", 1)
        return cls(sizes.get(f"i{letter}"), sizes.get(f"o{letter}"), kernel, stride, dilation, sizes.get(f"p{letter}"))

    def solved(self, deconvolution: bool) -> Shape:
        """y, x, k, stride, dilation, pads_begin and pads_end."""
        extent = (self.k - 1) * self.dilation + 1
        if self.i is None:
            raise Inexpressible("no input size")
        if self.o is None:
            pad = self.pad or 0
            step = (self.i - 1) * self.stride + extent - 2 * pad
            out = step if deconvolution else (self.i + 2 * pad - extent) // self.stride + 1
            return replace(self, o=out, pad=pad).solved(deconvolution)
        x, y = (self.o, self.i) if deconvolution else (self.i, self.o)
        total = (y - 1) * self.stride - x + extent
        begin = int(total / 2) if self.pad is None else self.pad
        return x, y, self.k, self.stride, self.dilation, begin, max(0, total - begin)
