"""The mathematics: each sum as a tensor expression, in a file that begins with its formula.

    filter_gradient.py    dw    ConvolutionBackpropFilters and ConvTransposeBackpropFilters
    data_gradient.py      dx    ConvolutionBackpropData, which is also the forward of ConvTranspose
    forward.py            y     ConvTransposeBackpropData, which is also the forward of Convolution
    bias.py               db    the bias gradient, for any of them
    winograd/                   the first three with fewer products

Filters and weights are one thing: the specification's old names say the former, its new names and schedules/ the
latter. docs/concepts.md has the three formulas side by side, and which operator takes which. The other files have what
the sums share: letters and indices (tensors.py), the operands (operands.py, views.py), and elements without products
(zeros.py).
"""

from tvmconvgrad.te.tensors import Expression

__all__ = ["Expression"]
