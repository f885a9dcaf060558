"""This package's kernels for the convolutions of a PyTorch program and for their gradients, on CPUs and NVIDIA GPUs.

    import tvmconvgrad.torch as cgt
    cgt.enable()

Kernels are built in the background, and PyTorch computes until they are ready. Then this package and PyTorch compute
the next calls in turn, and the faster one computes all later calls. `cgt.report()` shows which one computes what,
`cgt.warmup(model, example_input)` builds and measures everything at once, and `cgt.disable()` gives all calls back to
PyTorch. Import it before threads compute: the import changes PyTorch's dispatcher.
"""

from tvmconvgrad.torch.dispatch.operators import conv_backward, convolution
from tvmconvgrad.torch.dispatch.override import OverrideWarning
from tvmconvgrad.torch.enabling import disable, enable, enabled
from tvmconvgrad.torch.layers.convolution import Convolution
from tvmconvgrad.torch.reporting import Report, Row, report
from tvmconvgrad.torch.warming import warmup

__all__ = [
    "Convolution",
    "OverrideWarning",
    "Report",
    "Row",
    "conv_backward",
    "convolution",
    "disable",
    "enable",
    "enabled",
    "report",
    "warmup",
]
