"""Winograd's algorithm on CPUs, by three rules: begin with {data,weights,channels}/rule.py.

sizes.py has what a problem is in tiles, and what its parts cost; planner.py lets the model or a search choose the
size of the tiles; transforms.py makes the loops that transform data.
"""
