"""This package's kernels for the convolutions of a JAX program on a CPU, and for their gradients.

    import tvmconvgrad.jax as cgj
    cgj.enable()

Kernels are built while JAX compiles, and a first call waits for them. `cgj.report()` shows who computes what, and
`cgj.disable()` gives all convolutions back to XLA.
"""

from tvmconvgrad.jax.enabling import disable, enable, enabled
from tvmconvgrad.jax.problems.convolution import Convolution
from tvmconvgrad.jax.reporting import Report, Row, report

__all__ = ["Convolution", "Report", "Row", "disable", "enable", "enabled", "report"]
