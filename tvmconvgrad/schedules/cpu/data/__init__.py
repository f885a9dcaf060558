"""Data gradients and forward convolutions on CPUs. Begin with rule.py."""
