"""One file a GPU: the numbers that its schedules are planned with, each with its source (machines/files.py)."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
