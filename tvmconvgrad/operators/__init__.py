"""The operators as a user calls them: the specification's attributes, compiled on demand."""

# ruff: noqa: D101 -- the classes have the specification's docstrings

from tvmconvgrad import spec
from tvmconvgrad.operators.compiled import Compiled, TargetLike

__all__ = [
    "Compiled",
    "ConvTransposeBackpropData",
    "ConvTransposeBackpropFilters",
    "ConvTransposeBackwardData",
    "ConvTransposeBackwardWeights",
    "ConvolutionBackpropData",
    "ConvolutionBackpropFilters",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "TargetLike",
]


class ConvolutionBackpropFilters(Compiled, spec.ConvolutionBackpropFilters):
    __doc__ = spec.ConvolutionBackpropFilters.__doc__


class ConvolutionBackwardWeights(Compiled, spec.ConvolutionBackwardWeights):
    __doc__ = spec.ConvolutionBackwardWeights.__doc__


class ConvolutionBackpropData(Compiled, spec.ConvolutionBackpropData):
    __doc__ = spec.ConvolutionBackpropData.__doc__


class ConvolutionBackwardData(Compiled, spec.ConvolutionBackwardData):
    __doc__ = spec.ConvolutionBackwardData.__doc__


class ConvTransposeBackpropFilters(Compiled, spec.ConvTransposeBackpropFilters):
    __doc__ = spec.ConvTransposeBackpropFilters.__doc__


class ConvTransposeBackwardWeights(Compiled, spec.ConvTransposeBackwardWeights):
    __doc__ = spec.ConvTransposeBackwardWeights.__doc__


class ConvTransposeBackpropData(Compiled, spec.ConvTransposeBackpropData):
    __doc__ = spec.ConvTransposeBackpropData.__doc__


class ConvTransposeBackwardData(Compiled, spec.ConvTransposeBackwardData):
    __doc__ = spec.ConvTransposeBackwardData.__doc__
