"""oneDNN's primitives: the layouts are its own choice, of all tensors or of the filter alone."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, NamedTuple

from tvmconvgrad.bench.job import Array, Job, Tensors
from tvmconvgrad.bench.peers.onednn.library import DTYPES, Dims, Handles, OneDNNError, download, library
from tvmconvgrad.runtime.arrays import NUMPY_DTYPES
from tvmconvgrad.spec.values import Shape

_ANY = 1  # dnnl_format_tag_any
_FORWARD_TRAINING, _DIRECT_CONVOLUTION, _DIRECT_DECONVOLUTION = 64, 1, 10
_SOURCE, _TARGET = 1, 17  # execution arguments of a reorder
_IMPLEMENTATION = 8  # dnnl_query_impl_info_str


class _Way(NamedTuple):
    """A kind of primitive: for src, weights and dst its execution argument and the query of its layout."""

    name: str
    src: tuple[int, int]
    wei: tuple[int, int]
    dst: tuple[int, int]


_BY_WEIGHTS = _Way("backward_weights", (1, 129), (161, 132), (145, 134))
_BY_DATA = _Way("backward_data", (129, 130), (33, 131), (145, 134))
_FORWARD = _Way("forward", (1, 129), (33, 131), (17, 133))
_WAYS = {"wei": _BY_WEIGHTS, "src": _BY_DATA, "dst": _FORWARD}
"""By the result."""


class _Argument(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_int), ("memory", ctypes.c_void_p)]


class Primitive:
    """One gradient or forward as a primitive on its inputs, which are reordered once, before any `run`.

    With `plain` the data is in the job's layout, and the filter in oneDNN's own; otherwise all three tensors are in
    oneDNN's own. Takes explicit pads only. OneDNNError where oneDNN refuses.
    """

    def __init__(self, job: Job, tensors: Tensors, *, plain: bool) -> None:
        self._job, self._handles = job, Handles()
        # src, dst and weights of the forward primitive, by the job's roles
        self._roles = {"src": "y", "wei": "w", "dst": "x"} if job.transposed else {"src": "x", "wei": "w", "dst": "y"}
        self._result = next(name for name, role in self._roles.items() if role == job.result)
        self._dtype = DTYPES[job.dtype]
        try:
            self._prepare(tensors, plain)
        except OneDNNError:
            self.release()
            raise

    def _prepare(self, tensors: Tensors, plain: bool) -> None:
        way = _WAYS[self._result]
        users = {name: self._users_layout(name) for name in self._roles}
        free = {name: self._any_layout(name) for name in self._roles}
        wanted = {name: users[name] if plain and name != "wei" else free[name] for name in self._roles}
        description = self._description(way, wanted)
        self._primitive = self._handles.new("primitive_create", description)
        self._layouts = {name: self._layout(description, getattr(way, name)[1]) for name in self._roles}
        self._memories = {name: self._handles.allocated(layout) for name, layout in self._layouts.items()}
        self._users = users
        for name, role in self._roles.items():
            if role != self._job.result:
                self._fill(name, self._job.laid_out(role, tensors[role]))
        pairs = (_Argument(getattr(way, name)[0], self._memories[name].value) for name in self._roles)
        self._arguments = (_Argument * len(self._roles))(*pairs)
        self.facts: dict[str, Any] = {"api": "primitive", "implementation": self._implementation(description)}

    def run(self) -> None:
        """Compute the gradient once."""
        library().call("primitive_execute", self._primitive, library().stream, len(self._arguments), self._arguments)
        library().wait()

    def result(self) -> Array:
        """The result in the canonical layout."""
        job, handles = self._job, Handles()
        name = self._result
        shape, dtype = job.shape(job.result), NUMPY_DTYPES[job.dtype]
        address = handles.memory(prod(shape) * dtype.itemsize)
        users = handles.new("memory_create", self._users[name], library().engine, address)
        _reorder(handles, self._layouts[name], self._memories[name], self._users[name], users)
        found = download(address, shape, dtype)
        handles.release()
        return job.canonical(job.result, found)

    def release(self) -> None:
        """Give all memory back."""
        self._handles.release()

    def _description(self, way: _Way, layouts: dict[str, ctypes.c_void_p]) -> ctypes.c_void_p:
        job, attributes = self._job, self._job.attributes
        family = "deconvolution" if job.transposed else "convolution"
        algorithm = _DIRECT_DECONVOLUTION if job.transposed else _DIRECT_CONVOLUTION
        src, wei, dst = (layouts[name] for name in ("src", "wei", "dst"))
        numbers = [Dims(*attributes["strides"]), Dims(*(d - 1 for d in attributes["dilations"]))]
        numbers += [Dims(*attributes[name]) for name in ("pads_begin", "pads_end")]
        engine, new = library().engine, self._handles.new
        create = f"{family}_forward_primitive_desc_create"
        forward = new(create, engine, _FORWARD_TRAINING, algorithm, src, wei, None, dst, *numbers, None)
        if way is _FORWARD:
            return forward
        create = f"{family}_{way.name}_primitive_desc_create"
        tensors = (src, wei, None, dst) if way is _BY_WEIGHTS else (src, wei, dst)
        return new(create, engine, algorithm, *tensors, *numbers, forward, None)

    def _fill(self, name: str, array: Array) -> None:
        handles = Handles()
        users = handles.new("memory_create", self._users[name], library().engine, handles.upload(array))
        _reorder(handles, self._users[name], users, self._layouts[name], self._memories[name])
        handles.release()

    def _dims(self, name: str) -> tuple[Shape, Shape]:
        """A tensor's sizes in oneDNN's order of axes, and its strides in the job's layout."""
        job, role = self._job, self._roles[name]
        axes, shape = job.axes(role), job.shapes[role]
        strides, step = [0] * len(shape), 1
        for axis in reversed(axes):
            strides[axis], step = step, step * shape[axis]
        groups = job.attributes.get("groups", 1)
        if role != "w":
            return shape, tuple(strides)
        (o, c, *kernel), (by_o, by_c, *by_kernel) = shape, strides
        channels = [(o // groups, by_o), (c, by_c)]
        if job.transposed:
            channels.reverse()
        outer = [(groups, o // groups * by_o)] if groups > 1 else []
        columns = [*outer, *channels, *zip(kernel, by_kernel, strict=True)]
        return tuple(size for size, _ in columns), tuple(stride for _, stride in columns)

    def _users_layout(self, name: str) -> ctypes.c_void_p:
        dims, strides = self._dims(name)
        create = "memory_desc_create_with_strides"
        return self._handles.new(create, len(dims), Dims(*dims), self._dtype, Dims(*strides))

    def _any_layout(self, name: str) -> ctypes.c_void_p:
        dims, _ = self._dims(name)
        return self._handles.new("memory_desc_create_with_tag", len(dims), Dims(*dims), self._dtype, _ANY)

    def _layout(self, description: ctypes.c_void_p, query: int) -> ctypes.c_void_p:
        """The layout that a primitive has chosen; it belongs to the primitive."""
        return ctypes.c_void_p(library().so.dnnl_primitive_desc_query_md(description, query, 0))

    def _implementation(self, description: ctypes.c_void_p) -> str:
        text = ctypes.c_char_p()
        library().call("primitive_desc_query", description, _IMPLEMENTATION, 0, ctypes.byref(text))
        return (text.value or b"").decode()


def _reorder(
    handles: Handles,
    from_layout: ctypes.c_void_p,
    source: ctypes.c_void_p,
    to_layout: ctypes.c_void_p,
    target: ctypes.c_void_p,
) -> None:
    engine = library().engine
    description = handles.new("reorder_primitive_desc_create", from_layout, engine, to_layout, engine, None)
    primitive = handles.new("primitive_create", description)
    arguments = (_Argument * 2)(_Argument(_SOURCE, source.value), _Argument(_TARGET, target.value))
    library().call("primitive_execute", primitive, library().stream, 2, arguments)
    library().wait()
