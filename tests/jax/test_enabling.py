"""Where it holds, when it ends, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np
import pytest

import tvmconvgrad as cg
import tvmconvgrad.jax as cgj
from tests.jax.support import W, X, conv, equal, parts
from tvmconvgrad.jax import private
from tvmconvgrad.runtime import threads


def is_ours(function: Any) -> bool:
    return "tvmconvgrad" in function.lower(X, W).as_text()


def test_compiled_programs_are_compiled_again() -> None:
    own = private.lowering_rule()
    function = jax.jit(conv)
    expected = function(X, W)
    assert not is_ours(function)
    cgj.enable()
    assert is_ours(function)
    assert equal(function(X, W), expected)
    assert parts() == ["forward"]
    cgj.disable()
    assert not is_ours(function)
    assert private.lowering_rule() is own
    assert str(cgj.report()).splitlines()[-1] == "not enabled: XLA computes everything"


def test_contexts_end_in_any_order() -> None:
    function = jax.jit(conv)
    outer, inner = cgj.enabled(), cgj.enabled(layers=lambda _: False)
    outer.__enter__()
    inner.__enter__()
    assert not is_ours(function)
    outer.__exit__(None, None, None)
    assert not is_ours(function)
    inner.__exit__(None, None, None)
    assert cgj.report().notes
    with cgj.enabled():
        assert is_ours(function)
        cgj.disable()
        assert not is_ours(function)


@pytest.mark.parametrize(
    ("named", "error", "words"),
    [
        ({"algorithm": "fast"}, ValueError, "algorithm: got 'fast', expected 'direct' or 'auto'"),
        ({"algorithm": 3}, TypeError, "algorithm"),
        ({"layers": "all"}, TypeError, "layers: 'all' is not callable"),
        ({"layers": lambda: True}, TypeError, "layers: .* takes other arguments"),
    ],
)
def test_arguments(named: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cgj.enable(**named)
    assert not is_ours(jax.jit(conv))


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        (lambda conv: conv.wrong, ValueError, "layers: raised AttributeError when it was called with Convolution"),
        (lambda _: None, TypeError, "layers: returned None of type NoneType when it was called with Convolution"),
    ],
)
def test_a_function_that_fails_is_named(layers: Any, error: type[Exception], words: str) -> None:
    with cgj.enabled(layers=layers), pytest.raises(error, match=words):
        jax.jit(conv)(X, W)


def test_a_function_may_return_a_bool_of_numpy() -> None:
    with cgj.enabled(layers=lambda conv: np.prod(conv.lhs) > 1):
        assert is_ours(jax.jit(conv))
    with cgj.enabled(layers=lambda conv: np.prod(conv.lhs) < 1):
        assert not is_ours(jax.jit(conv))


def test_a_variable_with_an_unknown_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "newer")
    with pytest.raises(ValueError, match=r"TVMCONVGRAD_BUILD: got 'newer'.*, expected never or allowed"):
        cgj.enable()
    assert not is_ours(jax.jit(conv))


def test_calls_of_many_threads() -> None:
    function = jax.jit(conv)
    expected = function(X, W)
    wrong: list[Any] = []
    with cgj.enabled():
        function(X, W)

        def call() -> None:
            for _ in range(50):
                if not equal(function(X, W), expected):
                    wrong.append(None)

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert [row.calls for row in cgj.report().rows] >= [200]
    assert not wrong


def test_the_number_of_threads_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled program calls no Python that could tell it."""
    told: list[int] = []
    monkeypatch.setattr(threads.native, "set_threads", told.append)
    monkeypatch.setattr(threads, "_requested", None)
    monkeypatch.setattr(threads, "_told", None)
    cg.set_num_threads(3)
    assert told == [3]
    threads.forget()


def test_a_version_of_jax_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    import jax._src.interpreters.mlir as moved

    with monkeypatch.context() as patched:
        patched.delattr(moved, "_platform_specific_lowerings")
        with pytest.raises(ImportError, match=f"JAX {jax.__version__} keeps its lowering rules elsewhere"):
            importlib.reload(private)
    importlib.reload(private)
