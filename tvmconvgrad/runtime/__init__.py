"""Calling kernels: tensors in and out, threads, memory. Needs neither TVM nor its runtime."""
