"""Compilers, kernels built ahead or in this process, and scheduled programs that are run as they are."""
