"""Settings that `enable`, `disable` and `enabled` put in force and take back."""

from __future__ import annotations

from typing import Generic, TypeVar

S = TypeVar("S")


class SettingsStack(Generic[S]):
    """Settings that are pushed, and removed in any order. Whoever changes them holds a lock; reading needs none."""

    def __init__(self) -> None:
        self._pushed: tuple[S, ...] = ()

    @property
    def last(self) -> S | None:
        """Those that apply now; None if there are none."""
        pushed = self._pushed
        return pushed[-1] if pushed else None

    def push(self, settings: S) -> None:
        """Apply these settings from now on."""
        self._pushed = (*self._pushed, settings)

    def remove(self, settings: S) -> None:
        """Undo the last `push` of this object, if there is one. The settings that are last then apply."""
        for place in reversed(range(len(self._pushed))):
            if self._pushed[place] is settings:
                self._pushed = (*self._pushed[:place], *self._pushed[place + 1 :])
                return

    def replace(self, settings: S | None) -> None:
        """Forget all that was pushed, and apply these settings; with None, none."""
        self._pushed = () if settings is None else (settings,)
