"""Gradients as implicit GEMMs on GPUs. Begin with rule.py."""
