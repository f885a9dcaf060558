"""Which rule lowers convolutions for CPUs, and what was lowered by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from tvmconvgrad.frontends.stack import SettingsStack
from tvmconvgrad.jax import private
from tvmconvgrad.jax.handler import handler
from tvmconvgrad.jax.lowering import Lowered, lower
from tvmconvgrad.jax.settings import Settings

_MOST = 4096
"""Convolutions that are remembered for the report."""


class Override:
    """The settings that are pushed and removed, JAX's own rule, and the convolutions that were lowered.

    Whenever other settings apply, JAX forgets what it has compiled.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stack = SettingsStack[Settings]()
        self._theirs: Any = None
        self.lowered: dict[Any, Lowered] = {}
        """By what tells one from another in the report."""

    @property
    def settings(self) -> Settings | None:
        """Those that apply now; None if XLA computes everything."""
        return self._stack.last

    def push(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        handler()
        with self._changing():
            self._stack.push(settings)

    def remove(self, settings: Settings) -> None:
        """Undo the last `push` of this object. The settings that are last on the stack then apply."""
        with self._changing():
            self._stack.remove(settings)

    def replace(self, settings: Settings | None) -> None:
        """Empty the stack and apply these settings; with None, give all convolutions back to JAX's own rule."""
        if settings is not None:
            handler()
        with self._changing():
            self._stack.replace(settings)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of the stack, and what follows from it."""
        with self._lock:
            before = self.settings
            yield
            if self.settings is before:
                return
            if self.settings is None:
                private.set_lowering_rule(self._theirs)
            else:
                self.lowered = {}
                if before is None:
                    self._theirs = private.lowering_rule()
                private.set_lowering_rule(self._lower)
            jax.clear_caches()  # type: ignore[no-untyped-call]

    def _lower(self, context: Any, lhs: Any, rhs: Any, **numbers: Any) -> Any:
        """JAX's lowering rule while settings apply."""
        settings = self.settings
        if settings is None:  # given back while this module was being lowered
            return self._theirs(context, lhs, rhs, **numbers)
        values, found = lower(settings, context, lhs, rhs, **numbers)
        if found is not None and len(self.lowered) < _MOST:
            self.lowered[found.conv, found.number, found.reason] = found
        return self._theirs(context, lhs, rhs, **numbers) if values is None else values


override = Override()
