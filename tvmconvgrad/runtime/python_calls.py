"""The quick way into a kernel's function: Python's objects as they are, looked at in C (csrc/python.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.runtime.dlpack import capsule_pointer
from tvmconvgrad.runtime.native import Function, Layout, layout_of
from tvmconvgrad.spec import Problem

NOT_PLAIN = -1
"""What a call returns that has done nothing: one of its tensors needs a closer look."""


_FUNCTIONS = {
    "type": "PyObject_Type",
    "get": "PyObject_GetAttr",
    "ask": "PyObject_CallMethodObjArgs",
    "call": "PyObject_CallFunctionObjArgs",
    "pack": "PyTuple_Pack",
    "size": "PyObject_Size",
    "pointer": "PyCapsule_GetPointer",
    "item": "PyTuple_GetItem",
    "number": "PyLong_FromLong",
    "release": "Py_DecRef",
    "clear_error": "PyErr_Clear",
    "unlock": "PyEval_SaveThread",
    "lock": "PyEval_RestoreThread",
}
_OBJECTS = {
    "none": None,
    "no": False,
    "zero": 0,
    "minus_one": -1,
    "array": np.ndarray,
    "array_struct": "__array_struct__",
    "dtype": "dtype",
    "is_neg": "is_neg",
    "requires_grad": "requires_grad",
    "version": "_version",
    "storage": "untyped_storage",
    "level": "_current_level",
}
"""Held here, since C has their addresses. Python has one object for each small int."""
_TORCH_FUNCTIONS = {
    "is_grad_enabled": "is_grad_enabled",
    "is_tracing": "_is_tracing",
    "count_modes": "_len_torch_dispatch_stack",
    "mark_written": "_increment_version",
}
"""Of torch._C. A PyTorch that lacks one is looked at from Python."""
_TORCH_POINTERS = ("tensor", "parameter", "read_tensor", *_TORCH_FUNCTIONS, "forward_mode")


class _Python(ctypes.Structure):
    """Python of csrc/python.c; the last ones are PyTorch's, once it is known."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in (*_FUNCTIONS, *_OBJECTS, *_TORCH_POINTERS))


class _Method(ctypes.Structure):
    """PyMethodDef of Python."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_NAME, _METH_FASTCALL = b"run", 0x80
_new_method: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
_new_capsule: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _PythonCall(ctypes.Structure):
    """PythonCall of csrc/python.c."""

    _fields_ = (
        ("python", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("result_dtype", ctypes.c_void_p),
        ("has_own_result", ctypes.c_int),
        ("layout", Layout),
    )


_python = _Python(
    **{name: ctypes.cast(ctypes.pythonapi[symbol], ctypes.c_void_p) for name, symbol in _FUNCTIONS.items()},
    **{name: id(value) for name, value in _OBJECTS.items()},
)


_held: list[Any] = []  # of PyTorch's, since C has their addresses


def python_call(function: Function, problem: Problem, *, has_own_result: bool) -> Callable[..., int] | None:
    """A call of a function with two inputs, the result, and the bias or bias_delta, which is None for a problem without
    either. None if the function's library is of an older version.

    With `has_own_result` the result is the caller's, and may be what must not be written; else it is new. The call
    returns 0, the function's status, or NOT_PLAIN.
    """
    if function.python_method is None:
        return None
    dtypes = (id(NUMPY_DTYPES[dtype]) for dtype in (problem.dtype, problem.output_dtype))
    call = _PythonCall(ctypes.addressof(_python), function.address, *dtypes, has_own_result, layout_of(problem))
    method = _Method(_NAME, function.python_method(ctypes.addressof(_python)), _METH_FASTCALL, None)
    # In bytes, which the garbage collector does not empty before a method whose `self` has them.
    kept, described = bytes(method), bytes(call)
    held = _new_capsule(_address(described), None, None), kept, described, function
    answer: Callable[..., int] = _new_method(_address(kept), held, __name__)
    return answer


def _address(memory: bytes) -> int:
    """Where some bytes lie."""
    return ctypes.cast(ctypes.c_char_p(memory), ctypes.c_void_p).value or 0


class _ExchangeApi(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("export", ctypes.c_void_p),
        ("take", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


def meet_torch(torch: Any) -> None:
    """Tell C of PyTorch's tensors. A PyTorch without DLPack's exchange API, before 2.10, is looked at from Python."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return
    api = _ExchangeApi.from_address(capsule_pointer(capsule, b"dlpack_exchange_api"))
    functions = {name: getattr(torch._C, symbol, None) for name, symbol in _TORCH_FUNCTIONS.items()}
    forward_mode = torch.autograd.forward_ad
    if api.major != 1 or not api.read or None in functions.values() or not hasattr(forward_mode, "_current_level"):
        return
    _held.extend((functions, forward_mode))
    for name, function in functions.items():
        setattr(_python, name, id(function))
    _python.forward_mode, _python.read_tensor = id(forward_mode), api.read
    _python.tensor, _python.parameter = id(torch.Tensor), id(torch.nn.Parameter)  # last: from now on C looks at them
