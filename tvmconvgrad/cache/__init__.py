"""The store of built kernels on disk."""
