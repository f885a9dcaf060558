"""Folders whose worker and its parent were killed at the same time are removed by the next worker's parent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tvmconvgrad.workers import folder as folders


def test_stale_folders_go_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stale, used, new = (tmp_path / f"{folders.PREFIX}{name}" for name in ("stale", "used", "new"))
    foreign = tmp_path / "tvmconvgrad-other"
    for path in (stale, used, new, foreign):
        path.mkdir()
        (path / "file").touch()
    held = folders.take(str(used))
    for path in (stale, used, foreign):
        os.utime(path, (0, 0))
    made = Path(folders.make())
    os.close(held)
    assert set(tmp_path.iterdir()) == {used, new, foreign, made}
