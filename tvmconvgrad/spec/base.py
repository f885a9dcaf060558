"""What the four operators share: attributes, names, and the way from a call's shapes to a Problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from tvmconvgrad.spec.attributes import parse_attributes
from tvmconvgrad.spec.dtypes import parse_dtype
from tvmconvgrad.spec.epilogue import parse_epilogue
from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.layouts import Argument, parse_argument
from tvmconvgrad.spec.names import NEW_NAMES, merge_spellings, refuse_unknown
from tvmconvgrad.spec.pads import PadAxis
from tvmconvgrad.spec.problem import Gradient, Problem, tensor_bytes
from tvmconvgrad.spec.shapes import data_geometry, filter_geometry, forward_geometry
from tvmconvgrad.spec.values import S64_MAX, Ints, Shape


@dataclass(frozen=True, init=False, repr=False)
class Operator:
    """The attributes that all operators have.

    Immutable and hashable; equal attributes compare equal, whichever spelling they were passed in.
    """

    strides: Shape
    dilations: Shape
    auto_pad: str
    pads_begin: Shape | None
    """None unless auto_pad is none: ignored otherwise."""
    pads_end: Shape | None
    groups: int
    data_format: str
    filter_format: str
    _chosen: tuple[str, ...] = field(init=False, compare=False)

    name: ClassVar[str]
    gradient: ClassVar[Gradient]
    transposed: ClassVar[bool]
    backward_names: ClassVar[bool] = False
    filter_formats: ClassVar[Mapping[str, str]]
    shape_attribute: ClassVar[str | None]

    @property
    def weights_format(self) -> str:
        """The new name of filter_format."""
        return self.filter_format

    @property
    def rank(self) -> int:
        """The number of spatial axes, 1 to 3."""
        return len(self.strides)

    @property
    def input_names(self) -> tuple[str, str]:
        """Names of the two tensors that a call takes, in order."""
        if self.gradient is Gradient.FILTER:
            return self.spelled("input_forward"), self.spelled("output_delta")
        return self.spelled("output_delta"), self.spelled("filter")

    @property
    def output_name(self) -> str:
        """Name of the result."""
        return self.spelled("filter_delta" if self.gradient is Gradient.FILTER else "input_delta")

    def spelled(self, name: str) -> str:
        """Return the caller's spelling of a name: the one passed, otherwise the one of the class."""
        new = NEW_NAMES.get(name, name)
        if self.backward_names:
            return name if name in self._chosen else new
        return new if new in self._chosen else name

    def axes(self, kernel: Shape) -> list[PadAxis]:
        """Return the spatial axes, with the kernel's sizes."""
        none = (0,) * self.rank
        pads = zip(self.pads_begin or none, self.pads_end or none, strict=True)
        output_padding: Shape | None = getattr(self, "output_padding", None)
        extra = output_padding or (None,) * self.rank
        numbers = zip(kernel, self.strides, self.dilations, pads, extra, strict=True)
        return [PadAxis(k, s, d, self.auto_pad, p, op) for k, s, d, p, op in numbers]

    def problem(
        self,
        first_shape: Ints,
        second_shape: Ints,
        shape_input: Ints | None = None,
        dtype: object = "f32",
        *,
        result_dtype: object = None,
        accumulate: object = False,
        bias_delta: object = False,
        bias: object = False,
    ) -> Problem:
        """Return the gradient for two inputs of these shapes, every number resolved.

        `shape_input` is the value of the operator's optional third input, and wins over the attribute.
        `dtype` is f32, f16 or bf16, in NumPy's and torch's words too. `result_dtype` is f32, or the inputs' by default.
        With `accumulate` the result is added to what is there; with `bias_delta` a call also gives the bias gradient;
        with `bias` a bias is added to the result.
        Raises TypeError or ValueError where anything does not fit, naming argument, value and rule.
        """
        item_type = parse_dtype(dtype)
        first_name, second_name = self.input_names
        second_format = self.data_format if self.gradient is Gradient.FILTER else self.filter_format
        first = parse_argument(first_name, first_shape, self.data_format, self.rank)
        second = parse_argument(second_name, second_shape, second_format, self.rank)
        wanted = self._wanted(shape_input)
        problem = Problem(
            operator=self.name,
            gradient=self.gradient,
            geometry=self._geometry(first, second, wanted),
            data_format=self.data_format,
            filter_axes=self.filter_formats[self.filter_format],
            dtype=item_type,
            input_names=self.input_names,
            output_name=self.output_name,
            epilogue=parse_epilogue(
                item_type, self.gradient is Gradient.FILTER, result_dtype, accumulate, bias_delta, bias
            ),
        )
        _check_bytes(problem)
        return problem

    def _geometry(self, first: Argument, second: Argument, wanted: Argument | None) -> Geometry:
        if self.gradient is Gradient.FORWARD:
            return forward_geometry(self, first, second)
        if self.gradient is Gradient.DATA:
            return data_geometry(self, first, second, wanted)
        if wanted is None:
            name = self.spelled("filter_shape")
            raise ValueError(f"{name}: missing; give it as attribute or as third input")
        x, y = (second, first) if self.transposed else (first, second)
        return filter_geometry(self, x, y, wanted)

    def _wanted(self, shape_input: Ints | None) -> Argument | None:
        """Return the result's shape as the caller gives it: by the input, by the attribute, or not at all."""
        if self.shape_attribute is None:
            if shape_input is not None:
                reason = "its result's shape follows from the inputs"
                raise TypeError(f"shape_input: {type(self).__name__} takes none, {reason}")
            return None
        shape = getattr(self, self.shape_attribute) if shape_input is None else shape_input
        if shape is None:
            return None
        layout = self.filter_format if self.gradient is Gradient.FILTER else self.data_format
        return parse_argument(self.spelled(self.shape_attribute), shape, layout, self.rank)

    def __repr__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.init)
        shown = ", ".join(f"{self.spelled(name)}={value!r}" for name, value in values if value is not None)
        return f"{type(self).__name__}({shown})"


def assign(self: Operator, unknown: Mapping[str, object], **given: object) -> None:
    """Check the attributes that a constructor was given and store them; nothing else writes to the fields."""
    kind = type(self).__name__
    refuse_unknown(kind, unknown, given)
    merged, chosen = merge_spellings(kind, given)
    object.__setattr__(self, "_chosen", chosen)
    for name, value in parse_attributes(kind, merged, self.spelled, tuple(self.filter_formats)).items():
        object.__setattr__(self, name, value)


def _check_bytes(problem: Problem) -> None:
    shapes = (*problem.input_shapes, problem.output_shape)
    dtypes = (problem.dtype, problem.dtype, problem.output_dtype)
    for name, shape, dtype in zip((*problem.input_names, problem.output_name), shapes, dtypes, strict=True):
        if tensor_bytes(shape, dtype) > S64_MAX or max(shape) > S64_MAX:
            raise ValueError(f"{name}: shape {shape} of {dtype} exceeds 2**63 - 1 bytes")
