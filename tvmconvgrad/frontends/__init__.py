"""What the front ends of PyTorch and JAX share: their settings, and the words of their reports."""
