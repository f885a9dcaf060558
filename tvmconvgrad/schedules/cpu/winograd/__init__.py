"""Winograd's algorithm on CPUs. Begin with data.py, weights.py and channels.py, which have a rule each."""
