"""A gradient with every number resolved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from tvmconvgrad.computed_once import computed_once
from tvmconvgrad.spec.attributes import DATA_FORMATS
from tvmconvgrad.spec.dtypes import ITEM_BYTES, parse_dtype
from tvmconvgrad.spec.epilogue import PLAIN, Epilogue, epilogue_from_dict
from tvmconvgrad.spec.geometry import Crop, Geometry
from tvmconvgrad.spec.layouts import CONV_TRANSPOSE_FILTERS, CONVOLUTION_FILTERS, make_shape
from tvmconvgrad.spec.values import (
    MAX_SPATIAL_RANK,
    Shape,
    fields_of,
    parse_bool,
    parse_choice,
    parse_int,
    parse_ints,
    show,
)


class Gradient(str, Enum):
    """Which of the three sums of docs/concepts.md: dw, dx or y.

    DATA is the data gradient of Convolution, and the forward of ConvTranspose. FORWARD is the forward of Convolution,
    and the data gradient of ConvTranspose.
    """

    FILTER = "filter"
    DATA = "data"
    FORWARD = "forward"


_GRADIENTS = {
    "ConvolutionBackpropFilters": Gradient.FILTER,
    "ConvolutionBackpropData": Gradient.DATA,
    "ConvTransposeBackpropFilters": Gradient.FILTER,
    "ConvTransposeBackpropData": Gradient.FORWARD,
}


@dataclass(frozen=True)
class Problem:
    """One gradient with every number resolved: all that a kernel depends on, and the tensors' names.

    Made by an operator's `problem`, which has checked everything.
    """

    operator: str
    """The old name, "ConvolutionBackpropFilters", whatever the caller used."""
    gradient: Gradient
    geometry: Geometry
    data_format: str
    """"NXC" or "NCX"."""
    filter_axes: str
    """Order of the filter's axes X, C (c//groups long) and O (o long)."""
    dtype: str
    """"f32", "f16" or "bf16"."""
    input_names: tuple[str, str]
    output_name: str
    crop: Crop | None = None
    """The whole tensors, where the geometry is but a part of them (spec/reducing/cropping.py)."""
    epilogue: Epilogue = PLAIN
    """What is done with the sums besides rounding them to `dtype`."""
    flips_filter: bool = False
    """Whether tap k of the geometry lies at k.size - 1 - k along each spatial axis of the filter: a convolution in the
    word's mathematical sense, where the operators compute a correlation. No operator has it; JAX's front end does."""
    in_new_pages: bool = False
    """Whether the result lies in new pages of memory at each call: the system zeroes a page in the caches when it is
    first written, so a non-temporal store would have to evict it first."""

    @property
    def output_dtype(self) -> str:
        """The type of the result, and of the bias gradient."""
        return self.epilogue.result_dtype or self.dtype

    @property
    def may_bypass_caches(self) -> bool:
        """Whether the result may be written by non-temporal stores: it is not added to, and its pages are not new."""
        return not (self.epilogue.accumulate or self.in_new_pages)

    @property
    def whole(self) -> Geometry | Crop:
        """What has the spatial sizes x, y and k of the tensors."""
        return self.crop or self.geometry

    @property
    def is_zero(self) -> bool:
        """Whether no product meets an element, so that the whole result is zero."""
        return self.is_empty or (self.crop is not None and prod(self.geometry.k) == 0)

    @property
    def is_empty(self) -> bool:
        """Whether some tensor has no elements: there are no products, or there is no result."""
        return any(0 in shape for shape in (*self.input_shapes, self.output_shape))

    def begins(self, side: str) -> Shape:
        """Where the geometry's part begins along the spatial axes of a tensor: "y", "x" or "k"."""
        found: Shape = getattr(self.crop, f"{side}_begins") if self.crop else (0,) * self.geometry.rank
        if side == "k" and self.flips_filter:
            return tuple(size - begin - taps for size, begin, taps in zip(self.whole.k, found, self.geometry.k))
        return found

    @computed_once
    def x_shape(self) -> Shape:
        """Shape of x, in data_format."""
        return make_shape(self.data_format, {"N": self.geometry.batch, "C": self.geometry.c}, self.whole.x)

    @computed_once
    def y_shape(self) -> Shape:
        """Shape of y, in data_format."""
        return make_shape(self.data_format, {"N": self.geometry.batch, "C": self.geometry.o}, self.whole.y)

    @computed_once
    def filter_shape(self) -> Shape:
        """Shape of the filter or of its gradient, in its layout."""
        g = self.geometry
        return make_shape(self.filter_axes, {"C": g.c // g.groups, "O": g.o}, self.whole.k)

    @property
    def transposed(self) -> bool:
        """Whether the forward operator is ConvTranspose."""
        return _is_transposed(self.operator)

    @property
    def filter_format(self) -> str:
        """The filter's layout as the attribute spells it, "XIO" for example."""
        return next(name for name, axes in _filter_formats(self.operator).items() if axes == self.filter_axes)

    @computed_once
    def input_shapes(self) -> tuple[Shape, Shape]:
        """Shapes of the two inputs, in the operator's order."""
        if self.gradient is Gradient.DATA:
            return self.y_shape, self.filter_shape
        if self.gradient is Gradient.FORWARD:
            return self.x_shape, self.filter_shape
        return (self.y_shape, self.x_shape) if self.transposed else (self.x_shape, self.y_shape)

    @computed_once
    def output_shape(self) -> Shape:
        """Shape of the result."""
        shapes = {
            Gradient.FILTER: self.filter_shape,
            Gradient.DATA: self.x_shape,
            Gradient.FORWARD: self.y_shape,
        }
        return shapes[self.gradient]

    @property
    def delta_input(self) -> int:
        """Which of the two inputs is output_delta, the gradient of the forward operator's output."""
        return 1 if self.gradient is Gradient.FILTER else 0

    @property
    def bias_shape(self) -> Shape:
        """Shape of the bias: the channels of the result. Without that option, of the bias gradient: the channels of
        output_delta."""
        is_of_x = self.gradient is Gradient.DATA if self.epilogue.bias else self.transposed
        return (self.geometry.c if is_of_x else self.geometry.o,)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """Shapes of all that a call writes: the result, and the bias gradient if there is one."""
        return (self.output_shape, self.bias_shape) if self.epilogue.bias_delta else (self.output_shape,)

    @property
    def arguments(self) -> tuple[tuple[Shape, str], ...]:
        """Shape and type of all tensors of a call, in a kernel's order: the inputs, the result, and the bias or its
        gradient if there is one."""
        read, written = ((shape, self.dtype) for shape in self.input_shapes), self.output_shapes
        bias = [(self.bias_shape, self.dtype)] if self.epilogue.bias else []
        return (*read, *((shape, self.output_dtype) for shape in written), *bias)

    @property
    def flops(self) -> int:
        """Floating-point operations, two per product; padding is counted."""
        return self.geometry.flops

    @computed_once
    def tensor_bytes(self) -> int:
        """Bytes of the inputs and the result."""
        inputs = sum(tensor_bytes(shape, self.dtype) for shape in self.input_shapes)
        return inputs + tensor_bytes(self.output_shape, self.output_dtype)

    @property
    def key(self) -> str:
        """One line of JSON with all that a kernel's code depends on: the same under old and new names."""
        names = ("input_names", "output_name")
        return json.dumps({k: v for k, v in self.to_dict().items() if k not in names}, sort_keys=True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON's types; `from_dict` takes it back."""
        data = {
            **fields_of(self),
            "gradient": self.gradient.value,
            "geometry": fields_of(self.geometry),
            "crop": fields_of(self.crop) if self.crop else None,
            "epilogue": self.epilogue.to_dict(),
        }
        optional = ("crop", "epilogue", "flips_filter", "in_new_pages")
        return {name: value for name, value in data.items() if value or name not in optional}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Problem:
        """Return the problem of which `to_dict` made `data`, also by way of JSON.

        Raises ValueError where `data` is nothing of the kind, whoever may have written it.
        """
        try:
            gradient = Gradient(data["gradient"])
            is_filter = gradient is Gradient.FILTER
            fields = {
                **data,
                "operator": parse_choice("operator", data["operator"], tuple(_GRADIENTS)),
                "gradient": gradient,
                "geometry": _geometry_from_dict(data["geometry"], least_taps=0 if data.get("crop") else 1),
                "data_format": parse_choice("data_format", data["data_format"], DATA_FORMATS),
                "filter_axes": parse_choice(
                    "filter_axes", data["filter_axes"], tuple(_filter_formats(data["operator"]).values())
                ),
                "dtype": parse_dtype(data["dtype"]),
                "input_names": tuple(data["input_names"]),
                "crop": _crop_from_dict(data["crop"]) if data.get("crop") else None,
                "epilogue": epilogue_from_dict(parse_dtype(data["dtype"]), is_filter, data.get("epilogue", {})),
                **{name: parse_bool(name, data.get(name, False)) for name in ("flips_filter", "in_new_pages")},
            }
            problem = cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a problem's description: {type(error).__name__}: {error}") from error
        names = (*problem.input_names, problem.output_name)
        if len(names) != 3 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"not a problem's description: {show(names)} are no names of two inputs and a result")
        if not _is_inside(problem):
            raise ValueError(f"not a problem's description: {show(data['crop'])} has no such part")
        if problem.gradient is not _GRADIENTS[problem.operator]:
            raise ValueError(f"not a problem's description: {problem.operator} has another gradient")
        return problem

    def __str__(self) -> str:
        first, second, result = (" ".join(words) for words in self.tensor_words)
        attributes = ", ".join(" ".join(words) for words in self.attribute_words)
        return f"{self.operator} {self.dtype}: {first}, {second} -> {result}; {attributes}"

    @property
    def tensor_words(self) -> list[tuple[str, str, str]]:
        """Name, layout and shape of the inputs and the result, in words without spaces."""
        data, filter_ = self.data_format, self.filter_format
        formats = (data, data, filter_) if self.gradient is Gradient.FILTER else (data, filter_, data)
        names, shapes = (*self.input_names, self.output_name), (*self.input_shapes, self.output_shape)
        return list(zip(names, formats, map(_times, shapes), strict=True))

    @property
    def attribute_words(self) -> list[tuple[str, str]]:
        """Name and value of what else tells one problem from another, in words without spaces."""
        g = self.geometry
        pads = f"{_times(g.pads_begin)}/{_times(g.pads_end)}"
        values = (_times(g.strides), pads, _times(g.dilations), str(g.groups))
        words = [*zip(("strides", "pads", "dilations", "groups"), values, strict=True), *self.epilogue.words]
        words += [("filter", "flipped")] if self.flips_filter else []
        return [*words, ("result", "in-new-pages")] if self.in_new_pages else words


def tensor_bytes(shape: Shape, dtype: str) -> int:
    """Return the bytes of a dense tensor."""
    return prod(shape) * ITEM_BYTES[dtype]


def _is_transposed(operator: str) -> bool:
    return operator.startswith("ConvTranspose")


def _filter_formats(operator: str) -> dict[str, str]:
    """The orders of a filter's axes by the attribute's names for them."""
    return CONV_TRANSPOSE_FILTERS if _is_transposed(operator) else CONVOLUTION_FILTERS


def _geometry_from_dict(data: dict[str, Any], least_taps: int) -> Geometry:
    scalars, least = ("batch", "groups", "c", "o"), {"groups": 1, "k": least_taps, "strides": 1, "dilations": 1}
    ints = {name: parse_int(name, data[name], low=least.get(name, 0)) for name in scalars}
    others = {name: value for name, value in data.items() if name not in scalars}
    sizes = {name: parse_ints(name, value, low=least.get(name, 0)) for name, value in others.items()}
    values: dict[str, Any] = {**ints, **sizes}
    geometry = Geometry(**values)
    if {len(of_axes) for of_axes in sizes.values()} not in ({1}, {2}, {3}):
        raise ValueError(f"not a problem's description: {show(sizes)} are not of 1 to {MAX_SPATIAL_RANK} axes each")
    if geometry.c % geometry.groups or geometry.o % geometry.groups:
        raise ValueError(f"not a problem's description: groups {geometry.groups} do not divide its channels")
    return geometry


def _crop_from_dict(data: dict[str, Any]) -> Crop:
    return Crop(**{name: parse_ints(name, value, low=0) for name, value in data.items()})


def _is_inside(problem: Problem) -> bool:
    """Whether the geometry is a part of the whole tensors."""
    for side in "yxk":
        whole, begins, part = getattr(problem.whole, side), problem.begins(side), getattr(problem.geometry, side)
        if not len(whole) == len(begins) == len(part):
            return False
        if any(begin + extent > size for size, begin, extent in zip(whole, begins, part)):
            return False
    return True


def _times(sizes: Shape) -> str:
    return "x".join(str(size) for size in sizes)
