"""From a problem to a shared library, and where it is kept."""
