"""oneDNN's Graph API: a graph of one operator with the specification's own attributes, in the user's layout."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.bench.peers.onednn import words
from tvmconvgrad.bench.peers.onednn.library import DTYPES, Dims, Handles, OneDNNError, download, library
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.spec.values import Shape

_UNKNOWN_RANK, _STRIDED, _CPU, _FUSION = -1, 2, 1, 1
_OUTPUT = 9


class _LogicalTensor(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_size_t),
        ("ndims", ctypes.c_int),
        ("dims", Dims),
        ("data_type", ctypes.c_int),
        ("property", ctypes.c_int),
        ("layout_type", ctypes.c_int),
        ("strides", Dims),
    ]


class GraphOperator:
    """One compiled operator on its inputs. OneDNNError where oneDNN refuses it.

    oneDNN infers shapes and pads by itself, and chooses what to reorder inside of `run`.
    """

    def __init__(self, job: Job, tensors: Tensors) -> None:
        self._job, self._handles = words.in_its_formats(job), Handles()
        self._dtype = DTYPES[job.dtype]
        try:
            self._prepare([self._job.laid_out(role, tensors[role]) for role in job.inputs])
        except OneDNNError:
            self.release()
            raise
        self.facts: dict[str, Any] = {"api": "graph"}

    def _prepare(self, inputs: list[Array]) -> None:
        given = [self._logical(place, array.shape) for place, array in enumerate(inputs)]
        output = self._logical(_OUTPUT, None)
        self._compiled = self._compile(given, output)
        self._shape = tuple(output.dims[: output.ndims])
        count = prod(self._shape) * NUMPY_DTYPES[self._job.dtype].itemsize
        self._result = self._handles.memory(count)
        ctypes.memset(self._result, 0xFF, count)  # NaN, so that an element that is not written shows
        addresses = [self._handles.upload(array) for array in inputs]
        pairs = zip(given, addresses, strict=True)
        self._inputs = (ctypes.c_void_p * len(given))(*(self._tensor(form, address) for form, address in pairs))
        self._outputs = (ctypes.c_void_p * 1)(self._tensor(output, self._result))

    def run(self) -> None:
        """Compute the gradient once."""
        count = ctypes.c_size_t(len(self._inputs))
        arguments = (count, self._inputs, ctypes.c_size_t(1), self._outputs)
        library().call("graph_compiled_partition_execute", self._compiled, library().stream, *arguments)
        library().wait()

    def result(self) -> Array:
        """The result in the canonical layout."""
        found = download(self._result, self._shape, NUMPY_DTYPES[self._job.dtype])
        return self._job.canonical(self._job.result, found)

    def release(self) -> None:
        """Give all memory back."""
        self._handles.release()

    def _compile(self, given: list[_LogicalTensor], output: _LogicalTensor) -> ctypes.c_void_p:
        call = library().call
        operator = self._operator()
        for tensor in given:
            call("graph_op_add_input", operator, ctypes.byref(tensor))
        call("graph_op_add_output", operator, ctypes.byref(output))
        partition = self._partition(operator)
        compiled = self._handles.new("graph_compiled_partition_create", partition)
        inputs = (ctypes.c_void_p * len(given))(*(ctypes.addressof(tensor) for tensor in given))
        outputs = (ctypes.c_void_p * 1)(ctypes.addressof(output))
        sides = (ctypes.c_size_t(len(given)), inputs, ctypes.c_size_t(1), outputs)
        call("graph_partition_compile", partition, compiled, *sides, library().engine)
        query = (ctypes.c_size_t(_OUTPUT), ctypes.byref(output))
        call("graph_compiled_partition_query_logical_tensor", compiled, *query)
        return compiled

    def _operator(self) -> ctypes.c_void_p:
        name = words.operator_name(self._job)
        operator = self._handles.new("graph_op_create", ctypes.c_size_t(0), words.KINDS[name], name.encode())
        for attribute, value in words.attributes(self._job).items():
            number = words.ATTRIBUTES[attribute]
            if isinstance(value, str):
                library().call("graph_op_set_attr_str", operator, number, value.encode(), ctypes.c_size_t(1))
            else:
                numbers = [value] if isinstance(value, int) else [int(entry) for entry in value]
                values = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
                library().call("graph_op_set_attr_s64", operator, number, values, ctypes.c_size_t(len(numbers)))
        return operator

    def _partition(self, operator: ctypes.c_void_p) -> ctypes.c_void_p:
        call = library().call
        graph = self._handles.new("graph_graph_create", _CPU)
        call("graph_add_op", graph, operator)
        call("graph_graph_finalize", graph)
        call("graph_graph_filter", graph, _FUSION)
        count, supported = ctypes.c_size_t(), ctypes.c_uint8()
        call("graph_graph_get_partition_num", graph, ctypes.byref(count))
        if count.value != 1:
            raise OneDNNError("graph_graph_get_partition_num", "unimplemented")
        found = (ctypes.c_void_p * 1)()
        call("graph_graph_get_partitions", graph, count, found)
        partition = self._handles.keep("graph_partition_destroy", ctypes.c_void_p(found[0]))
        call("graph_partition_is_supported", partition, ctypes.byref(supported))
        if not supported.value:
            raise OneDNNError("graph_partition_is_supported", "unimplemented")
        return partition

    def _logical(self, place: int, shape: Shape | None) -> _LogicalTensor:
        """A tensor of known shape, or one that oneDNN infers."""
        tensor = _LogicalTensor()
        head = (ctypes.byref(tensor), ctypes.c_size_t(place), self._dtype)
        if shape is None:
            library().call("graph_logical_tensor_init", *head, _UNKNOWN_RANK, _STRIDED, 0)
        else:
            rest = (len(shape), Dims(*shape), _STRIDED, 0)
            library().call("graph_logical_tensor_init_with_dims", *head, *rest)
        return tensor

    def _tensor(self, form: _LogicalTensor, address: ctypes.c_void_p) -> int | None:
        return self._handles.new("graph_tensor_create", ctypes.byref(form), library().engine, address).value
