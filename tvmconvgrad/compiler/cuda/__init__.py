"""From a scheduled program to a GPU's machine code."""
