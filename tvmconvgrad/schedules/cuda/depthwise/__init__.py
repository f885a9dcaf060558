"""Depthwise gradients on GPUs. Begin with rule.py."""
