"""A pass for transposing copies: the loops (loops.py), what is copied (copies.py), one block of it (blocks.py)."""
