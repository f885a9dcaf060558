"""Weights gradients of large filters by Winograd's algorithm, by ranges of channels. Begin with rule.py."""
