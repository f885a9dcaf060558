"""This package's kernels for the convolutions of a JAX program on a CPU, and for their gradients."""
