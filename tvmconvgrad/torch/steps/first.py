"""The first step of a training, in which nothing is built."""

from __future__ import annotations

from typing import Any

MOST_CALLS = 2000
"""A first step has at most so many calls: a program whose image sizes change may never call the first layer again."""


class FirstStep:
    """The calls of a program until the layer that it called first comes again. Kernels are built later: compilers, and
    asking for kernels, would slow this step down, and a program that ends with it needs none."""

    def __init__(self) -> None:
        self.is_over = False
        self._first: Any = None
        self._calls = 0

    def count(self, part: Any) -> None:
        """Note a call of a part of a layer."""
        self._calls += 1
        if self._first is None:
            self._first = part
        elif part is self._first or self._calls > MOST_CALLS:
            self.is_over = True
