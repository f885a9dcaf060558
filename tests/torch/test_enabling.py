"""Where it holds, when it ends, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import tvmconvgrad.torch as cgt
from tests.torch.support import called, register, take_back
from tvmconvgrad.runtime import threads
from tvmconvgrad.torch.dispatch import dispatcher
from tvmconvgrad.torch.dispatch.dispatcher import NAMES
from tvmconvgrad.torch.dispatch.override import overrides
from tvmconvgrad.torch.state import MOST_SETTINGS, state

X, W = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3)


def test_gpus_are_left_to_pytorch_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides["CPU"], "device", "cuda")  # CPU tensors stand in for a GPU's
    with cgt.enabled():
        torch.conv2d(X, W)
        assert not called()
    with cgt.enabled(devices=["cuda"]):
        torch.conv2d(X, W)
        assert called()


def test_disable_leaves_all_to_pytorch() -> None:
    take_back()
    expected = torch.conv2d(X, W)
    register()
    assert torch.equal(torch.conv2d(X, W), expected)
    cgt.enable()
    cgt.disable()
    assert torch.equal(torch.conv2d(X, W), expected)
    assert not called()
    cgt.disable()


IMPORT = f"""
import torch

def seen():
    return [torch._C._dispatch_dump(f"aten::{{name}}") for name in {NAMES!r}]

before = seen()
import tvmconvgrad.torch as cgt
imported = seen()
assert all(one != other for one, other in zip(before, imported))
for _ in range(2):
    cgt.enable()
    torch.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3, requires_grad=True)).sum().backward()
    cgt.disable()
    with cgt.enabled("auto"):
        pass
    assert seen() == imported
print("right")
"""


def test_the_dispatcher_is_changed_by_the_import_alone() -> None:
    """It may not be changed while other threads call through it: they would crash."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["right"], done.stderr


def test_threads_compute_while_others_enable_and_disable() -> None:
    errors: list[BaseException] = []
    ends = threading.Event()

    def compute() -> None:
        x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
        try:
            while not ends.is_set():
                torch.autograd.grad(torch.conv2d(x, w).sum(), (x, w))
        except BaseException as error:
            errors.append(error)

    computing = [threading.Thread(target=compute) for _ in range(3)]
    for thread in computing:
        thread.start()
    for _ in range(300):
        cgt.enable()
        with cgt.enabled("auto"):
            pass
        cgt.disable()
    ends.set()
    for thread in computing:
        thread.join()
    assert not errors
    assert not [step.reason for step in called() if step.reason]


def test_settings_that_are_never_the_same_are_forgotten() -> None:
    class Unhashable(list[int]):
        def __call__(self, conv: cgt.Convolution) -> bool:
            return True

    for _ in range(2 * MOST_SETTINGS):
        with cgt.enabled(layers=Unhashable()):
            torch.conv2d(X, W)
    assert len(state._known) == MOST_SETTINGS
    assert len(cgt.report().rows) == 1


@pytest.mark.usefixtures("at_once")
def test_contexts_are_nested_and_hold_for_all_threads() -> None:
    with cgt.enabled():
        with cgt.enabled("auto", dtypes=[torch.float32]):
            thread = threading.Thread(target=torch.conv2d, args=(X, W))
            thread.start()
            thread.join()
            assert state.settings is not None
            assert state.settings.algorithm == "auto"
            assert len(called()) == 1
        assert state.settings.algorithm == "direct"
    assert state.settings is None
    torch.conv2d(X, W)
    assert called()[0].calls == 1


def test_contexts_may_end_in_any_order() -> None:
    one, other = cgt.enabled(), cgt.enabled("auto")
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert state.settings is not None
    assert state.settings.algorithm == "auto"
    other.__exit__(None, None, None)
    assert state.settings is None


@pytest.mark.usefixtures("at_once")
def test_types_and_layers_are_chosen() -> None:
    with cgt.enabled(dtypes=[torch.bfloat16], layers=lambda conv: conv.groups == 1 and conv.weight[2:] == (3, 3)):
        torch.conv2d(X, W)
        torch.conv2d(X.bfloat16(), W.bfloat16())
        torch.conv2d(X.bfloat16(), W[:, :, :1, :1].bfloat16())
    reasons = [step.reason for step in called()]
    assert reasons == ["enable(dtypes=...) leaves out torch.float32", "", "enable(layers=...) leaves it out"]


@pytest.mark.parametrize(
    ("named", "error", "words"),
    [
        ({"algorithm": "winograd"}, ValueError, "algorithm: got 'winograd', expected 'direct' or 'auto'"),
        ({"algorithm": 3}, TypeError, "algorithm: got 3 of type int"),
        ({"dtypes": torch.float32}, TypeError, "dtypes: torch.float32 is not a sequence of torch.dtype"),
        ({"dtypes": ["f32"]}, TypeError, "dtypes: 'f32' is not a torch.dtype"),
        ({"dtypes": [torch.float64]}, ValueError, "dtypes: torch.float64 is not supported"),
        ({"dtypes": []}, ValueError, "dtypes: is empty"),
        ({"devices": "cpu"}, TypeError, "devices: 'cpu' is not a sequence of str"),
        ({"devices": [0]}, TypeError, "devices: 0 is not a str"),
        ({"devices": ["mps"]}, ValueError, "devices: 'mps' is unknown, expected 'cpu' or 'cuda'"),
        ({"devices": []}, ValueError, "devices: is empty"),
        ({"layers": "conv1"}, TypeError, "layers: 'conv1' is not callable"),
        ({"layers": lambda: True}, TypeError, "takes other arguments (too many positional arguments), expected a func"),
        ({"layers": lambda conv, more: True}, TypeError, "(missing a required argument: 'more')"),
    ],
)
def test_wrong_arguments(named: dict[str, Any], error: type[Exception], words: str) -> None:
    for call in (cgt.enable, lambda **given: cgt.enabled(**given).__enter__()):
        with pytest.raises(error) as caught:
            call(**named)
        assert words in str(caught.value)
    assert state.settings is None


@pytest.mark.parametrize(
    ("layers", "error", "words"),
    [
        (
            lambda conv: conv.kernel[0] == 3,
            ValueError,
            "raised AttributeError when it was called with {}: 'Convolution'",
        ),
        (lambda conv: conv.weight[4] == 3, ValueError, "raised IndexError when it was called with {}: tuple index out"),
        (
            lambda conv: "yes",
            TypeError,
            "returned 'yes' of type str when it was called with {}, expected True or False",
        ),
        (lambda conv: None, TypeError, "returned None of type NoneType when it was called with {}, expected True or"),
    ],
)
def test_a_function_of_layers_that_fails(layers: Any, error: type[Exception], words: str) -> None:
    """The layer's call raises, in the forward as in autograd's thread, and the next one does again."""
    w = W.clone().requires_grad_()
    y = torch.conv2d(X, w)
    cgt.enable(layers=layers)
    for call in (lambda: torch.conv2d(X, w), lambda: torch.conv2d(X, w), y.sum().backward):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value).startswith("layers: " + words.format("conv2d 4->5 3x3, 2x6x6"))
        assert isinstance(caught.value.__cause__, (AttributeError, IndexError, type(None)))
        assert (caught.value.__cause__ is None) == (error is TypeError)
    cgt.disable()
    assert torch.equal(torch.conv2d(X, w), y)


def test_a_variable_that_is_no_number_of_threads(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """enable() refuses it; once it is enabled, PyTorch computes, and the report says why."""
    words = "TVMCONVGRAD_NUM_THREADS: got 'many', expected an int"
    cgt.enable()
    monkeypatch.setenv(threads.VARIABLE, "many")
    with pytest.raises(ValueError, match=words):
        cgt.enable()
    threads.forget()
    assert torch.conv2d(X, W).shape == (2, 5, 4, 4)
    (row,) = cgt.report().rows
    assert row.by == "PyTorch"
    assert f"ValueError: {words}" in row.why


def test_a_variable_with_an_unknown_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "newer")
    with pytest.raises(ValueError, match=r"TVMCONVGRAD_BUILD: got 'newer'.*, expected never or allowed"):
        cgt.enable()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
def test_another_override_is_named() -> None:
    take_back()
    theirs = torch.library.Library("aten", "IMPL")
    seen = []

    def function(keys: Any, *arguments: Any) -> Any:
        seen.append(1)
        return torch.ops.aten._convolution.default._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *arguments)

    try:
        theirs.impl("_convolution", function, "CPU", with_keyset=True)
        register()
        with pytest.warns(cgt.OverrideWarning, match=r"aten::_convolution for CPU is overridden by .*test_enabling.py"):
            cgt.enable()
        torch.conv2d(X.double(), W.double())
        assert seen == [1]  # what ours does not compute
        cgt.disable()
        torch.conv2d(X, W)
        assert seen == [1, 1]
    finally:
        take_back()
        theirs._destroy()
        register()


GENERATED = "/pytorch/build/aten/src/ATen/RegisterCUDA_0.cpp:7344"
"""Where PyTorch for GPUs registers `convolution_backward` for the key CUDA, beside that for all backends."""


def test_what_pytorch_registers_for_gpus_is_no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what it has for CPUs; and its kernel for all backends stands for it before PyTorch 2.9."""
    assert dispatcher.registered("mm", "CPU")
    assert not dispatcher.foreign("mm", "CPU")
    monkeypatch.setattr(dispatcher, "registered", lambda *_: GENERATED)
    assert not dispatcher.foreign("convolution_backward", "CUDA")
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    backward = dispatcher.kernel_below("convolution_backward", "CUDA")
    y = torch.ones_like(torch.conv2d(X, W))
    arguments: Any = (y, X, W, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    expected = torch.ops.aten.convolution_backward(*arguments)[:2]
    assert all(map(torch.equal, backward(*arguments)[:2], expected))


OVERRIDES = """
import torch
theirs = torch.library.Library("aten", "IMPL")
theirs.impl("convolution_backward", lambda *arguments: None, "CUDA")
import tvmconvgrad.torch
print("right")
"""


def test_pytorch_does_not_warn_of_our_override() -> None:
    """As it would of one where it has registered a kernel for the same key itself."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", OVERRIDES], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["right"], done.stderr
    assert "Warning" not in done.stderr


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
def test_another_override_on_top_is_named() -> None:
    cgt.enable()
    assert not cgt.report().notes
    theirs = torch.library.Library("aten", "IMPL")
    try:
        theirs.impl("_convolution", lambda *arguments: X, "CPU")
        (note,) = cgt.report().notes
        assert "aten::_convolution for CPU is overridden by" in note
        assert "test_enabling.py" in note
        with pytest.warns(cgt.OverrideWarning, match=r"test_enabling.py.*, which is called in our place"):
            cgt.enable()
    finally:
        theirs._destroy()
