"""Weights gradients of large filters by Winograd's algorithm, by partitions of channels. Begin with rule.py."""
