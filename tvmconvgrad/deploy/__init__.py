"""Bundles: kernels compiled ahead, for programs without Python and for Python without a compiler."""
