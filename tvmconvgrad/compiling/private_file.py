"""A shared library as a file for the moment of loading it.

The system's loader maps files, not bytes. Loading a file of the cache would map something that any process of
this user may truncate while its code runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def library_file(library: bytes) -> Iterator[Path]:
    """Path of a new file with the bytes of `library`, gone after the block; what was loaded stays mapped.

    It lies in a folder of this user alone below the system's temporary folder ($TMPDIR), which must allow
    execution. OSError when it cannot be written there.
    """
    # A new path each time: the loader answers a path that it knows with the library that it has. That rules
    # out /proc/self/fd/N of a memory file, whose number comes back.
    with tempfile.TemporaryDirectory(prefix="tvmconvgrad-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(library)
        yield path
