"""Tests that need a GPU, and neither TVM nor CUDA's toolkit beside it: their kernels come from bundles."""
