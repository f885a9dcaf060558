"""Measuring a bundle's kernels on a GPU beside cuDNN. Needs PyTorch and NumPy, and no compiler (benchmarks/gpu.py)."""
