"""Convolution gradients, compiled by Apache TVM, with the semantics of oneDNN Graph's operators.

    import tvmconvgrad as cg

    op = cg.ConvolutionBackpropFilters(
        strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 64, 128)
    )
    filter_delta = op(input_forward, output_delta)
    kernel = op.compile(input_forward.shape, output_delta.shape, dtype="f32", target="llvm -mcpu=native")
    kernel(input_forward, output_delta, out=filter_delta)

    cg.prepare("resnet_50", progress=True)  # builds all of its kernels, on all CPUs

Kernels are compiled in processes of their own: neither importing this package nor calling a kernel imports a compiler.
"""

from tvmconvgrad.bundles.errors import BundleError, MissingKernel
from tvmconvgrad.bundles.load import Bundle, load
from tvmconvgrad.bundles.registry import use
from tvmconvgrad.cache.folder import CacheFolderError
from tvmconvgrad.cache.store import CacheWarning
from tvmconvgrad.common.errors import CompilerFailed, MissingCompiler
from tvmconvgrad.deploy.api import build
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.operators import (
    ConvolutionBackpropData,
    ConvolutionBackpropFilters,
    ConvolutionBackwardData,
    ConvolutionBackwardWeights,
    ConvTransposeBackpropData,
    ConvTransposeBackpropFilters,
    ConvTransposeBackwardData,
    ConvTransposeBackwardWeights,
)
from tvmconvgrad.preparing import prepare
from tvmconvgrad.records.logs import TuningWarning
from tvmconvgrad.runtime.kernel import Kernel
from tvmconvgrad.runtime.threads import get_num_threads, set_num_threads
from tvmconvgrad.version import __version__

__all__ = [
    "Bundle",
    "BundleError",
    "CacheFolderError",
    "CacheWarning",
    "CompilerFailed",
    "ConvTransposeBackpropData",
    "ConvTransposeBackpropFilters",
    "ConvTransposeBackwardData",
    "ConvTransposeBackwardWeights",
    "ConvolutionBackpropData",
    "ConvolutionBackpropFilters",
    "ConvolutionBackwardData",
    "ConvolutionBackwardWeights",
    "Kernel",
    "MissingCompiler",
    "MissingKernel",
    "Target",
    "TuningWarning",
    "__version__",
    "build",
    "get_num_threads",
    "load",
    "prepare",
    "set_num_threads",
    "use",
]
