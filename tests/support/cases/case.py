"""A case: one operator on one convolution, in one choice of layouts, type and spelling; and how it is run."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.cases import layouts
from tests.support.cases.convolution import Array, Convolution, Shape, Tensors

# the tensors of each operator: (first input, second input), result
ROLES = {
    "ConvolutionBackpropFilters": (("x", "y"), "w"),
    "ConvolutionBackpropData": (("y", "w"), "x"),
    "ConvTransposeBackpropFilters": (("y", "x"), "w"),
    "ConvTransposeBackpropData": (("x", "w"), "y"),
}
OPERATORS = tuple(ROLES)
NEW_NAMES = {name: name.replace("BackpropFilters", "BackwardWeights") for name in OPERATORS}
NEW_NAMES = {old: new.replace("BackpropData", "BackwardData") for old, new in NEW_NAMES.items()}
OLD_NAMES = {new: old for old, new in NEW_NAMES.items()}
NEW_ATTRIBUTES = {"filter_format": "weights_format", "filter_shape": "weights_shape", "output_shape": "dst_shape"}
DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Call:
    """What it takes to build a kernel: plain data that another process understands."""

    operator: str
    attributes: dict[str, Any]
    shapes: tuple[Shape, Shape]
    shape_input: Shape | None = None
    dtype: str = "f32"
    schedule: str | None = None
    target: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Those of the kernel's final write: accumulate, bias_delta, result_dtype."""

    def compile(self) -> Any:
        """The package's kernel."""
        return self._made().compile(*self.shapes, self.shape_input, **self._how)

    def compile_async(self) -> Future[Any]:
        """The same, now or later."""
        future: Future[Any] = self._made().compile_async(*self.shapes, self.shape_input, **self._how)
        return future

    @property
    def _how(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "target": self.target, "schedule": self.schedule, **self.options}

    def problem(self) -> Any:
        """The package's problem."""
        return self._made().problem(*self.shapes, self.shape_input, self.dtype, **self.options)

    def _made(self) -> Any:
        """The package's operator."""
        import tvmconvgrad

        return getattr(tvmconvgrad, self.operator)(**self.attributes)


@dataclass(frozen=True)
class Case:
    """One operator on one convolution. Hashable; its text is a test's id."""

    operator: str
    """By its old name."""
    convolution: Convolution
    data_format: str = "NXC"
    filter_format: str = "XIO"
    dtype: str = "f32"
    auto_pad: str = "none"
    output_padding: Shape | None = None
    shape_by: str = "attribute"
    """How the result's shape is given: attribute, input, or not."""
    new_names: bool = False

    @property
    def result(self) -> str:
        return ROLES[self.operator][1]

    @property
    def inputs(self) -> tuple[str, str]:
        return ROLES[self.operator][0]

    def axes(self, name: str) -> Shape:
        """The order of axes of y, x or w in this case's layouts."""
        rank = self.convolution.rank
        return layouts.permutation(self.operator, name, self.data_format, self.filter_format, rank)

    def shape(self, name: str) -> Shape:
        return layouts.shape_in(self.convolution.shapes[name], self.axes(name))

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The operator's attributes, by old or new names."""
        conv = self.convolution
        attributes: dict[str, Any] = {
            "strides": conv.strides,
            "dilations": conv.dilations,
            "groups": conv.groups,
            "data_format": self.data_format,
            "filter_format": self.filter_format,
            "auto_pad": self.auto_pad,
        }
        if self.auto_pad == "none":
            attributes |= {"pads_begin": conv.pads_begin, "pads_end": conv.pads_end}
        if self.output_padding is not None:
            attributes["output_padding"] = self.output_padding
        if self.shape_by == "attribute" and self.operator != "ConvTransposeBackpropData":
            name = "filter_shape" if self.result == "w" else "output_shape"
            attributes[name] = self.shape(self.result)
        if self.new_names:
            attributes = {NEW_ATTRIBUTES.get(name, name): value for name, value in attributes.items()}
        return attributes

    @property
    def call(self) -> Call:
        first, second = self.inputs
        shape_input = self.shape(self.result) if self.shape_by == "input" else None
        name = NEW_NAMES[self.operator] if self.new_names else self.operator
        return Call(name, self.attributes, (self.shape(first), self.shape(second)), shape_input, self.dtype)

    def arrays(self, tensors: Tensors) -> list[Array]:
        """The two inputs in this case's layouts and type."""
        dtype = DTYPES[self.dtype]
        return [layouts.from_canonical(tensors[name], self.axes(name)).astype(dtype) for name in self.inputs]

    def run(self, tensors: Tensors) -> Array:
        """The operator's result on these canonical operands, in the canonical layout."""
        import tvmconvgrad

        call = self.call
        operator = getattr(tvmconvgrad, call.operator)(**call.attributes)
        shape = [] if call.shape_input is None else [np.array(call.shape_input, np.int32)]
        result = operator(*self.arrays(tensors), *shape)
        assert isinstance(result, np.ndarray)
        assert result.dtype == DTYPES[self.dtype]
        assert result.shape == self.shape(self.result)
        return layouts.to_canonical(result, self.axes(self.result))

    def with_dtype(self, dtype: str) -> Case:
        return replace(self, dtype=dtype)

    def __str__(self) -> str:
        conv = self.convolution
        parts = [
            f"n{conv.batch}g{conv.groups}c{conv.c}o{conv.o}",
            *(
                letter + "x".join(map(str, sizes))
                for letter, sizes in zip(
                    ("x", "k", "s", "d"), (conv.x, conv.k, conv.strides, conv.dilations), strict=True
                )
            ),
            "p" + "x".join(f"{b}+{e}" for b, e in zip(conv.pads_begin, conv.pads_end, strict=True)),
        ]
        short = "".join(letter for letter in self.operator if letter.isupper())
        op = "" if self.output_padding is None else "-op" + "x".join(map(str, self.output_padding))
        choices = [self.data_format, self.filter_format, self.dtype, self.auto_pad, self.shape_by]
        return f"{short}-{'-'.join(choices)}-{'_'.join(parts)}{op}{'-new' if self.new_names else ''}"


def assert_same(got: Array, expected: Array) -> None:
    """Equal in shape and bit for bit in value (NaNs alike); a failure counts and shows the wrong elements."""
    assert got.shape == expected.shape
    wrong = np.argwhere(~((got == expected) | ((got != got) & (expected != expected))))
    if len(wrong):
        first = tuple(int(i) for i in wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {got.size} elements differ, at {first} first: {got[first]}, expected {expected[first]}"
        )


def assert_close_by_tiles(got: Array, exact: Array) -> None:
    """Equal in shape, and as close to sums in float64 as Winograd's tiles of six products come, relative to the largest
    element, since rounding errors reach all of a tile."""
    assert got.shape == exact.shape
    rounding = {4: 0.0, 2: float(ml_dtypes.finfo(got.dtype).eps) / 2}[got.dtype.itemsize]  # to 16 bits, from f32
    error = abs(got.astype(np.float64) - exact).max(initial=0.0)
    assert error <= (4e-6 + rounding) * abs(exact).max(initial=0.0)
