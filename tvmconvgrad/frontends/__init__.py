"""What the front ends of PyTorch and JAX share: the words of their reports, and the options that both have."""
