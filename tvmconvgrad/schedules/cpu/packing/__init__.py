"""Packing an operand on CPUs: data by blocks of channels (data.py), a filter into panels (filter.py)."""

from __future__ import annotations

from enum import Enum


class Packs(str, Enum):
    """Where an operand is packed."""

    IN_PLACE = ""
    """Nowhere: it is read in place."""
    BEFORE = "before"
    """Before all work items, in parallel."""
    WORK_ITEM = "work_item"
    """By each work item, what it reads."""


BLOCK_K = 16
"""Channels of K that are innermost in packed operands: a cache line of f32."""
