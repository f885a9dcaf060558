"""The first step of a program, in which nothing is built."""

from __future__ import annotations

MOST_CALLS = 2000
"""A first step has at most so many calls: each may be of another layer, if every step has settings of its own."""

MOST_KNOWN = 8
"""A first step of a training ends, too, if so many calls in a row for each part have brought no new one: perhaps nobody
asks for gradients."""


class FirstStep:
    """PyTorch computes the first step, and nothing is built: compilers, and asking for kernels, would slow it down, and
    a program that ends with it needs none.

    In a training it ends with the first forward after a gradient. Without gradients it ends when the part of a layer
    that was called first comes again, or when as many calls in a row as there are parts have brought no new one:
    something may be called once, and never again. Threads that count at the same time end it a few calls later.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._first: object = None
        self._calls, self._parts, self._known = 0, 0, 0
        self._has_gradients = False

    def count(self, part: object, is_new: bool, is_gradient: bool, may_train: bool) -> None:
        """Note a call of a part of a layer. `is_new`: it is the first call of this part; `may_train`: it is made in
        PyTorch's grad mode."""
        self._calls += 1
        again = part is self._first
        if is_new:
            self._first = part if self._first is None else self._first
            self._parts, self._known = self._parts + 1, 0
        else:
            self._known += 1
        if self._has_gradients and not is_gradient:
            self.is_over = True
        self._has_gradients = self._has_gradients or is_gradient
        if self._has_gradients or may_train:
            done = self._known >= MOST_KNOWN * self._parts
        else:
            done = again or self._known >= self._parts
        if self.is_over or done or self._calls > MOST_CALLS:
            self.is_over, self._first = True, None
