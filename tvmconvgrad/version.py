"""The version of this package. A build and its caller compare it."""

__version__ = "0.1.0"
