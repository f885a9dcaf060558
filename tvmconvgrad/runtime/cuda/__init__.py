"""Calling kernels on NVIDIA GPUs, by the driver alone: neither CUDA's toolkit nor TVM's runtime is loaded."""
