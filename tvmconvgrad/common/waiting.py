"""A line on the terminal that says what a call waits for, if it takes longer than a second."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SECONDS = 1.0
"""After which the line is shown."""
_CLEAR = "\r\x1b[K"

_turn = threading.Lock()
"""Held by the thread whose line is on the terminal: there is room for one."""


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """A block that shows the line `what` on standard error while it runs, after SECONDS, if that is a terminal."""
    stream = sys.stderr
    if stream is None or not _is_terminal(stream):
        yield
        return
    line = _Line(what)
    try:
        with suppress(RuntimeError):  # the system allows no further thread
            line.timer.start()
        yield
    finally:
        line.end()


class _Line:
    """One line, which a timer shows and `end` clears."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._is_over = self._is_shown = False
        self.timer = threading.Timer(SECONDS, self._show)
        self.timer.daemon = True

    def _show(self) -> None:
        with self._lock:
            if not self._is_over and _turn.acquire(blocking=False):
                self._is_shown = True
                _write(self._what[: shutil.get_terminal_size().columns - 1])

    def end(self) -> None:
        self.timer.cancel()
        with self._lock:
            self._is_over = True
            if self._is_shown:
                _write(_CLEAR)
                _turn.release()


def _is_terminal(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]  # a program may put any object there
    except (AttributeError, ValueError):  # ValueError: it is closed
        return False


def _write(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
