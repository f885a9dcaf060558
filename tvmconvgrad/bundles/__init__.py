"""Bundles in use: read from their folders, checked, and called. Needs NumPy and nothing heavier."""
