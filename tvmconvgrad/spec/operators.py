"""The operators of the specification, each under its old and its new name.

All take keywords only, both spellings of an attribute (not in one call), and check them at once:

* strides, dilations: positive, one entry per spatial axis (1 to 3); required.
* pads_begin, pads_end: non-negative; required when auto_pad is none, ignored otherwise.
* auto_pad: none, same_upper, same_lower or valid, in any case. same_upper puts an odd element at the end.
* groups: positive, divides the channels of both sides.
* data_format: NXC or NCX.
* filter_format (weights_format): XIO or OIX, for the ConvTranspose operators XOI or IOX too; and beyond the
  specification OXI, for the ConvTranspose operators IXO, which PyTorch's channels_last filters have in memory. The
  Convolution operators also take XOI and IOX, so that each order of a forward ConvTranspose's filter has a name there.
* filter_shape (weights_shape), output_shape (dst_shape): the result's shape; a call's third input wins.
* output_padding: non-negative; where given, x = strides*(y - 1) + extent - pads + output_padding must hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, SupportsIndex

from tvmconvgrad.spec.base import Operator, assign
from tvmconvgrad.spec.layouts import CONV_TRANSPOSE_FILTERS, CONVOLUTION_FILTERS
from tvmconvgrad.spec.problem import Gradient
from tvmconvgrad.spec.values import Ints, Shape

# In every __init__: **unknown takes misspelt attributes, for an error that lists the right
# ones; NoReturn makes a type checker object too. locals(), first thing in the body, is just the arguments.


@dataclass(frozen=True, init=False, repr=False)
class ConvolutionBackpropFilters(Operator):
    """Gradient of Convolution with respect to its filter: (input_forward, output_delta, filter_shape?) -> filter_delta.

    Filters: XIO is (X, I/groups, O), OIX is (O, I/groups, X), and likewise OXI, XOI and IOX.
    Specification: ConvolutionBackpropFilters-1.
    """

    filter_shape: Shape | None

    name = "ConvolutionBackpropFilters"
    gradient = Gradient.FILTER
    transposed = False
    filter_formats = CONVOLUTION_FILTERS
    shape_attribute = "filter_shape"

    def __init__(
        self,
        *,
        strides: Ints,
        pads_begin: Ints | None = None,
        pads_end: Ints | None = None,
        dilations: Ints,
        auto_pad: str | None = "none",
        groups: SupportsIndex = 1,
        data_format: str = "NXC",
        filter_format: str | None = None,
        weights_format: str | None = None,
        filter_shape: Ints | None = None,
        weights_shape: Ints | None = None,
        **unknown: NoReturn,
    ) -> None:
        assign(**locals())

    @property
    def weights_shape(self) -> Shape | None:
        """The new name of filter_shape."""
        return self.filter_shape


class ConvolutionBackwardWeights(ConvolutionBackpropFilters):
    """ConvolutionBackpropFilters by its new names: (src, diff_dst, weights_shape?) -> diff_weights."""

    backward_names = True


@dataclass(frozen=True, init=False, repr=False)
class ConvolutionBackpropData(Operator):
    """Gradient of Convolution with respect to its input: (output_delta, filter, output_shape?) -> input_delta.

    Filters: XIO is (X, I/groups, O), OIX is (O, I/groups, X), and likewise OXI, XOI and IOX. Without output_shape, the
    shape follows from the other attributes when auto_pad is none or valid, or strides are 1.
    Specification: ConvolutionBackpropData-1.
    """

    output_padding: Shape | None
    output_shape: Shape | None

    name = "ConvolutionBackpropData"
    gradient = Gradient.DATA
    transposed = False
    filter_formats = CONVOLUTION_FILTERS
    shape_attribute = "output_shape"

    def __init__(
        self,
        *,
        strides: Ints,
        pads_begin: Ints | None = None,
        pads_end: Ints | None = None,
        dilations: Ints,
        auto_pad: str | None = "none",
        output_padding: Ints | None = None,
        groups: SupportsIndex = 1,
        data_format: str = "NXC",
        filter_format: str | None = None,
        weights_format: str | None = None,
        output_shape: Ints | None = None,
        dst_shape: Ints | None = None,
        **unknown: NoReturn,
    ) -> None:
        assign(**locals())

    @property
    def dst_shape(self) -> Shape | None:
        """The new name of output_shape."""
        return self.output_shape


class ConvolutionBackwardData(ConvolutionBackpropData):
    """ConvolutionBackpropData by its new names: (diff_dst, weights, dst_shape?) -> diff_src."""

    backward_names = True


@dataclass(frozen=True, init=False, repr=False)
class ConvTransposeBackpropFilters(Operator):
    """Gradient of ConvTranspose with respect to its filter: (input_forward, output_delta, filter_shape?) ->
    filter_delta.

    Filters: XIO is (X, I, O/groups), OIX is (O/groups, I, X), oneDNN 3's XOI and IOX of the same sizes, and IXO.
    Specification: ConvTransposeBackpropFilters-1.
    """

    output_padding: Shape | None
    filter_shape: Shape | None

    name = "ConvTransposeBackpropFilters"
    gradient = Gradient.FILTER
    transposed = True
    filter_formats = CONV_TRANSPOSE_FILTERS
    shape_attribute = "filter_shape"

    def __init__(
        self,
        *,
        strides: Ints,
        pads_begin: Ints | None = None,
        pads_end: Ints | None = None,
        dilations: Ints,
        auto_pad: str | None = "none",
        output_padding: Ints | None = None,
        groups: SupportsIndex = 1,
        data_format: str = "NXC",
        filter_format: str | None = None,
        weights_format: str | None = None,
        filter_shape: Ints | None = None,
        weights_shape: Ints | None = None,
        **unknown: NoReturn,
    ) -> None:
        assign(**locals())

    @property
    def weights_shape(self) -> Shape | None:
        """The new name of filter_shape."""
        return self.filter_shape


class ConvTransposeBackwardWeights(ConvTransposeBackpropFilters):
    """ConvTransposeBackpropFilters by its new names: (src, diff_dst, weights_shape?) -> diff_weights."""

    backward_names = True


@dataclass(frozen=True, init=False, repr=False)
class ConvTransposeBackpropData(Operator):
    """Gradient of ConvTranspose with respect to its input: (output_delta, filter) -> input_delta.

    Filters: as for ConvTransposeBackpropFilters. Not in the specification; completes the family.
    """

    output_padding: Shape | None

    name = "ConvTransposeBackpropData"
    gradient = Gradient.FORWARD
    transposed = True
    filter_formats = CONV_TRANSPOSE_FILTERS
    shape_attribute = None

    def __init__(
        self,
        *,
        strides: Ints,
        pads_begin: Ints | None = None,
        pads_end: Ints | None = None,
        dilations: Ints,
        auto_pad: str | None = "none",
        output_padding: Ints | None = None,
        groups: SupportsIndex = 1,
        data_format: str = "NXC",
        filter_format: str | None = None,
        weights_format: str | None = None,
        **unknown: NoReturn,
    ) -> None:
        assign(**locals())


class ConvTransposeBackwardData(ConvTransposeBackpropData):
    """ConvTransposeBackpropData by its new names: (diff_dst, weights) -> diff_src."""

    backward_names = True
