"""Weights gradients by Winograd's algorithm, with a sum of the whole filter in memory. Begin with rule.py."""
