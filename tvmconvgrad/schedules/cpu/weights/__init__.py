"""Weights gradients on CPUs. Begin with rule.py."""
