"""What every implementation is asked for: one gradient or forward, its tensors by role, in one canonical layout.

The roles: x (N, C, *space) and y (N, O, *space) of the convolution y = conv(x, w), and w the filter (O, C/groups,
*kernel). Convolution goes from x to y, ConvTranspose from y to x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.spec import Problem
from tvmconvgrad.spec.layouts import filter_formats, make_shape, other_name
from tvmconvgrad.spec.values import Shape

Array = npt.NDArray[Any]
Tensors = dict[str, Array]

# the tensors of each operator: (first input, second input), result
ROLES = {
    "ConvolutionBackpropFilters": (("x", "y"), "w"),
    "ConvolutionBackpropData": (("y", "w"), "x"),
    "ConvTransposeBackpropFilters": (("y", "x"), "w"),
    "ConvTransposeBackpropData": (("x", "w"), "y"),
    "Convolution": (("x", "w"), "y"),
    "ConvTranspose": (("y", "w"), "x"),
}
_SAME_SUMS = {"ConvTransposeBackpropData": "Convolution", "ConvolutionBackpropData": "ConvTranspose"}
"""Data gradients, and the forward operators that they compute."""


class Refused(Exception):
    """An implementation does not take a job; the message says why."""


@dataclass(frozen=True)
class Job:
    """One gradient or forward: an operator by its old or new name, its attributes, and the canonical shapes of x, y, w.

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
        x, y = ((g.batch, channels, *space) for channels, space in ((g.c, g.x), (g.o, g.y)))
        shapes = {"x": x, "y": y, "w": (g.o, g.c // g.groups, *g.k)}
        job = cls(problem.operator, attributes, shapes, problem.data_format, problem.filter_format, problem.dtype)
        return job._with_output_padding()

    def in_formats(self, data_format: str, filter_format: str, dtype: str) -> Job:
        """The same sums for other layouts and another type."""
        return replace(self, data_format=data_format, filter_format=filter_format, dtype=dtype)

    def as_forward(self) -> Job:
        """What a data gradient computes, as the forward operator of the other family."""
        return self._renamed(_SAME_SUMS[self.old_name])

    def as_gradient(self) -> Job:
        """What a forward operator computes, as the other family's data gradient; a gradient as it is."""
        if not self.is_forward:
            return self
        return self._renamed(next(name for name, forward in _SAME_SUMS.items() if forward == self.operator))

    def _renamed(self, operator: str) -> Job:
        """The same sums by an operator of the other family."""
        filter_format = other_name(self.filter_format, self.transposed)
        return replace(self, operator=operator, filter_format=filter_format)._with_output_padding()

    def _with_output_padding(self) -> Job:
        """The job with the output_padding that its shapes imply where its operator has the attribute."""
        attributes = {name: value for name, value in self.attributes.items() if name != "output_padding"}
        if self.transposed and self.result != "w":
            attributes["output_padding"] = self.beyond
        return replace(self, attributes=attributes)

    @property
    def old_name(self) -> str:
        """The operator's old name."""
        return self.operator.replace("BackwardWeights", "BackpropFilters").replace("BackwardData", "BackpropData")

    @property
    def transposed(self) -> bool:
        """Whether the forward operator is ConvTranspose."""
        return self.operator.startswith("ConvTranspose")

    @property
    def is_forward(self) -> bool:
        """Whether the operator is a forward one."""
        return self.operator in _SAME_SUMS.values()

    @property
    def beyond(self) -> Shape:
        """Elements at the end of x that no tap reaches: output_padding, seen from the transposed side."""
        x, y, k = (self.shapes[role][2:] for role in ("x", "y", "w"))
        names = ("strides", "dilations", "pads_begin", "pads_end")
        axes = zip(x, y, k, *(self.attributes[name] for name in names), strict=True)
        return tuple(x - (s * (y - 1) + (k - 1) * d + 1 - begin - end) for x, y, k, s, d, begin, end in axes)

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
        return filter_formats(self.transposed)

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
