"""The operators as the specification defines them: attributes, names, layouts, pads, shapes. Pure Python."""

from tvmconvgrad.spec.base import Operator
from tvmconvgrad.spec.dtypes import parse_dtype
from tvmconvgrad.spec.geometry import Geometry
from tvmconvgrad.spec.operators import (
    ConvolutionBackpropData,
    ConvolutionBackpropFilters,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvTransposeBackpropData,
    ConvTransposeBackpropFilters,
    ConvTransposeBackwardData,
    ConvTransposeBackwardWeights,
)
from tvmconvgrad.spec.problem import Gradient, Problem

__all__ = [
    "ConvTransposeBackpropData",
    "ConvTransposeBackpropFilters",
    "ConvTransposeBackwardData",
    "ConvTransposeBackwardWeights",
    "ConvolutionBackpropData",
    "ConvolutionBackpropFilters",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "Geometry",
    "Gradient",
    "Operator",
    "Problem",
    "parse_dtype",
]
