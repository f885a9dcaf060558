"""What can go wrong with a bundle."""

from __future__ import annotations


class BundleError(ValueError):
    """A folder is no bundle, or not as it was built, or not for this machine: the text says which."""


class MissingKernel(RuntimeError):
    """A kernel is in no bundle in use, and must not be built: the text names it and what builds it."""
