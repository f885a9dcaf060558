"""JAX's arrays: read, never written, and results of the same kind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.runtime.layers import FILTERS, layer, program
from tests.support.cases.case import DTYPES, assert_same

jax = pytest.importorskip("jax", reason="JAX is not installed (pip install jax)")


def jax_layer(dtype: str = "f32") -> tuple[Any, list[Any], Any]:
    kernel, inputs, want = layer(FILTERS.with_dtype(dtype))
    return kernel, [jax.numpy.asarray(array) for array in inputs], want


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_arrays_of_jax(dtype: str) -> None:
    kernel, (first, second), want = jax_layer(dtype)
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    for call in (kernel, op):
        for other in (second, np.asarray(second)):
            result = call(first, other)
            assert isinstance(result, jax.Array)
            assert result.dtype == first.dtype
            assert (result.devices(), result.committed) == (first.devices(), False)
            assert_same(np.asarray(result), want)
        assert isinstance(call(np.asarray(first), second), np.ndarray)
        assert_same(np.asarray(jax.jit(lambda one: one * 2)(call(first, second))), want * 2)
        out = np.zeros_like(want)
        assert call(first, second, out=out) is out
        assert_same(out, want)


def test_a_result_is_never_written_into_one() -> None:
    kernel, (first, second), want = jax_layer()
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    zeros = jax.numpy.zeros(want.shape)
    shared = jax.device_put(zeros)
    for call in (kernel, op):
        for out in (zeros, jax.numpy.zeros(want.shape, jax.numpy.bfloat16), np.asarray(zeros)):
            with pytest.raises(ValueError, match=r"^out: is read-only"):
                call(first, second, out=out)
    assert not np.asarray(zeros).any()
    assert not np.asarray(shared).any()


def test_no_result_changes_afterwards() -> None:
    kernel, (first, second), want = jax_layer()
    results = [kernel(first, second) for _ in range(5)]
    assert len({result.unsafe_buffer_pointer() for result in results}) == 5
    for result in results:
        assert_same(np.asarray(result), want)


@pytest.mark.parametrize("place", range(2))
def test_tracers(place: int) -> None:
    kernel, inputs, want = jax_layer()
    op = getattr(cg, FILTERS.operator)(**FILTERS.attributes)
    name = ("input_forward", "output_delta")[place]
    for call in (kernel, op):

        def traced(one: Any, call: Any = call) -> Any:
            return call(*[one if i == place else each for i, each in enumerate(inputs)]).sum()

        for transform in (jax.jit(traced), jax.grad(traced), jax.make_jaxpr(traced)):
            with pytest.raises(TypeError, match=rf"^{name}: .* tracer of JAX.* tvmconvgrad\.jax\.enable"):
                transform(inputs[place])
        with pytest.raises(TypeError, match=rf"^{name}: .* tracer of JAX"):
            jax.vmap(traced)(inputs[place][None])
        with pytest.raises(TypeError, match=r"^out: .* tracer of JAX"):
            jax.jit(lambda out, call=call: call(*inputs, out=out))(want)
    callback = jax.jit(
        lambda one, two: jax.pure_callback(kernel, jax.ShapeDtypeStruct(want.shape, want.dtype), one, two)
    )
    assert_same(np.asarray(callback(*inputs)), want)


def test_arrays_that_cannot_be_read() -> None:
    kernel, (first, second), _ = jax_layer()
    gone = first + 0
    gone.delete()
    with pytest.raises(ValueError, match=r"^input_forward: .*deleted"):
        kernel(gone, second)
    with pytest.raises(ValueError, match=r"^input_forward: dtype int32 is not supported"):
        kernel(first.astype(np.int32), second)
    with pytest.raises(ValueError, match=r"^input_forward: dtype key<.*> is not supported"):
        kernel(jax.random.key(0), second)
    with pytest.raises(ValueError, match=r"^output_delta: shape"):
        kernel(first, second[:1])


def test_several_devices() -> None:
    layer(FILTERS)
    code = """
import jax
from tests.runtime.layers import FILTERS
kernel, inputs, want = layer(FILTERS)
one, two = jax.devices()
first, second = inputs
for device in (one, two):
    placed = jax.device_put(first, device)
    result = kernel(placed, second)
    assert result.devices() == {device} and result.committed and np.array_equal(result, want)
mesh = jax.sharding.Mesh(np.array([one, two]), ("batch",))
spread = jax.device_put(first, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch")))
print(np.array_equal(kernel(spread, jax.device_put(second, two)), want))
"""
    assert program(code, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "True"


def test_jax_is_not_imported_for_others() -> None:
    code = "import sys, tvmconvgrad; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
