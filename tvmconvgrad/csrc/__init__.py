"""C that is compiled into kernels and bundles, and the folder that a C compiler finds it in."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
