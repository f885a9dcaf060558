"""The quick way into a kernel's function: Python's objects as they are, looked at in C (compiling/python.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
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
    "pointer": "PyCapsule_GetPointer",
    "release": "Py_DecRef",
    "clear_error": "PyErr_Clear",
    "unlock": "PyEval_SaveThread",
    "lock": "PyEval_RestoreThread",
}
_OBJECTS = {
    "no": False,
    "array": np.ndarray,
    "array_struct": "__array_struct__",
    "dtype": "dtype",
    "is_neg": "is_neg",
    "requires_grad": "requires_grad",
}
"""Held here, since C has their addresses."""


class _Python(ctypes.Structure):
    """Python of compiling/python.c; the last three are PyTorch's, once it is known."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in (*_FUNCTIONS, *_OBJECTS, "tensor", "parameter", "read_tensor"))


class _PythonCall(ctypes.Structure):
    """PythonCall of compiling/python.c."""

    _fields_ = (
        ("python", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("layout", Layout),
    )


_python = _Python(
    **{name: ctypes.cast(ctypes.pythonapi[symbol], ctypes.c_void_p) for name, symbol in _FUNCTIONS.items()},
    **{name: id(value) for name, value in _OBJECTS.items()},
)


def python_call(function: Function, problem: Problem) -> Callable[[Any, Any, Any], int] | None:
    """A call of a function with two inputs and the result of a problem, unless its library is of an older version.

    It returns 0, the function's status, or NOT_PLAIN.
    """
    if function.call_python is None:
        return None
    dtype = id(NUMPY_DTYPES[problem.dtype])
    call = _PythonCall(ctypes.addressof(_python), function.address, dtype, layout_of(problem))
    return partial(function.call_python, ctypes.byref(call))


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
    if api.major == 1 and api.read:
        _python.read_tensor = api.read
        _python.tensor, _python.parameter = id(torch.Tensor), id(torch.nn.Parameter)
