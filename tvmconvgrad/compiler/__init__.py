"""From a problem to a shared library or a GPU's machine code, in worker processes."""
