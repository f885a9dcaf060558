"""The search of one task."""
