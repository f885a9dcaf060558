"""The names of parameters that passes tell from others."""

from __future__ import annotations

BIAS = "bias"
"""The name of the parameter that is added to results: passes that move elements from one place to another tell it from
them."""

OUT = "out"
"""The name of the parameter that is the result."""
