"""Data gradients and forward convolutions by Winograd's algorithm. Begin with rule.py."""
