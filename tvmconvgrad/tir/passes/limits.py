"""Limits of the passes that schedules have to know, too."""

from __future__ import annotations

LEAST_SIDE = 4
"""The loops of a transposing copy must have at least so many steps; otherwise elements are copied one by one."""

MAX_STRIDE = 4
"""The greatest stride at which strided vectors are loaded, or stored, together with the elements between theirs."""
