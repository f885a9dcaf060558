"""What every implementation is asked for: one gradient, its tensors by role, in one canonical layout.

The roles: y is the big side (N, C, *space), x the small side (N, O, *space), w the filter (O, C/groups, *kernel).
Convolution goes from y to x, ConvTranspose from x to y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.layouts import CONV_TRANSPOSE_FILTERS, CONVOLUTION_FILTERS, make_shape
from tvmconvgrad.spec.values import Shape

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

# the tensors of each operator: (first input, second input), result
ROLES = {
    "ConvolutionBackpropFilters": (("x", "y"), "w"),
    "ConvolutionBackpropData": (("y", "w"), "x"),
    "ConvTransposeBackpropFilters": (("y", "x"), "w"),
    "ConvTransposeBackpropData": (("x", "w"), "y"),
}


class Refused(Exception):
    """An implementation does not take a job; the message says why."""


@dataclass(frozen=True)
class Job:
    """One gradient: an operator by its old or new name, its attributes, and the canonical shapes of y, x and w.

    `attributes` are those of the specification without layouts and without the result's shape.
    """

    operator: str
    attributes: dict[str, Any]
    shapes: dict[str, Shape]
    data_format: str
    filter_format: str
    dtype: str

    @classmethod
    def of(cls, problem: Problem) -> Job:
        """The job of a problem."""
        g = problem.geometry
        attributes = {
            "strides": g.strides,
            "dilations": g.dilations,
            "pads_begin": g.pads_begin,
            "pads_end": g.pads_end,
            "groups": g.groups,
        }
        if problem.operator == "ConvTransposeBackpropData":
            attributes["output_padding"] = beyond(problem)
        x, y = ((g.batch, channels, *space) for channels, space in ((g.c, g.x), (g.o, g.y)))
        shapes = {"x": x, "y": y, "w": (g.o, g.c // g.groups, *g.k)}
        return cls(problem.operator, attributes, shapes, problem.data_format, problem.filter_format, problem.dtype)

    def in_formats(self, data_format: str, filter_format: str, dtype: str) -> Job:
        """The same gradient for other layouts and another type."""
        return replace(self, data_format=data_format, filter_format=filter_format, dtype=dtype)

    @property
    def old_name(self) -> str:
        """The operator's old name."""
        return self.operator.replace("BackwardWeights", "BackpropFilters").replace("BackwardData", "BackpropData")

    @property
    def transposed(self) -> bool:
        """Whether the forward operator is ConvTranspose."""
        return self.operator.startswith("ConvTranspose")

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.shapes["w"]) - 2

    @property
    def inputs(self) -> tuple[str, str]:
        """Roles of the two inputs, in the operator's order."""
        return ROLES[self.old_name][0]

    @property
    def result(self) -> str:
        """Role of the result."""
        return ROLES[self.old_name][1]

    @property
    def filter_formats(self) -> dict[str, str]:
        """The filter's layouts by their names."""
        return CONV_TRANSPOSE_FILTERS if self.transposed else CONVOLUTION_FILTERS

    @property
    def all_attributes(self) -> dict[str, Any]:
        """The operator's attributes with layouts and the result's shape."""
        attributes = {**self.attributes, "data_format": self.data_format, "filter_format": self.filter_format}
        if self.result == "w":
            attributes["filter_shape"] = self.shape("w")
        elif self.result == "x":
            attributes["output_shape"] = self.shape("x")
        return attributes

    def axes(self, role: str) -> Shape:
        """For each axis of a tensor in the job's layout, which axis it is in the canonical one."""
        spatial = range(2, 2 + self.rank)
        if role == "w":
            return make_shape(self.filter_formats[self.filter_format], {"O": 0, "C": 1}, spatial)
        return make_shape(self.data_format, {"N": 0, "C": 1}, spatial)

    def shape(self, role: str) -> Shape:
        """A tensor's shape in the job's layout."""
        return tuple(self.shapes[role][axis] for axis in self.axes(role))

    def laid_out(self, role: str, canonical: Array) -> Array:
        """A canonical tensor in the job's layout and type."""
        return np.ascontiguousarray(canonical.transpose(self.axes(role)), NUMPY_DTYPES[self.dtype])

    def canonical(self, role: str, tensor: Array) -> Array:
        """A tensor of the job's layout in the canonical one."""
        moved: Array = tensor.transpose(np.argsort(self.axes(role)))
        return moved


def beyond(problem: Problem) -> Shape:
    """Elements at the end of y that no tap reaches: output_padding, seen from the transposed side."""
    g = problem.geometry
    axes = zip(g.x, g.y, g.strides, g.tap_extent, g.pads_begin, g.pads_end, strict=True)
    return tuple(x - (s * (y - 1) + extent - begin - end) for x, y, s, extent, begin, end in axes)
