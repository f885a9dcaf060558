"""Our kernels beside other implementations of the same gradients: measured in turn, compared bit for bit."""
