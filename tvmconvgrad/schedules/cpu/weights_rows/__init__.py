"""Weights gradients of few channels on CPUs, vectorised over positions. Begin with rule.py."""
