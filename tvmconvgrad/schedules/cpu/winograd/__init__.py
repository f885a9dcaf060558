"""Winograd's algorithm on CPUs. Begin with data.py and weights.py."""
