"""What lives longer than a process, or needs one with other settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SETUP = """
import sys
import jax, jax.numpy as jnp, numpy as np
import tvmconvgrad.jax as cgj
from tests.jax.support import W, X, conv, equal, loss
"""
KEPT = """
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
gradients = jax.jit(jax.grad(loss, (0, 1)))
expected = gradients(X, W)
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
cgj.enable()
assert equal(gradients(X, W), expected)
assert all(row.calls for row in cgj.report().rows if not row.why)
print(len(hits))
"""
DEVICES = """
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 2
expected = jax.grad(loss, (0, 1))(X, W)
mesh = Mesh(np.array(jax.devices()), ("n",))
x = jax.device_put(X, NamedSharding(mesh, P("n")))
def mapped(x, w):
    by_x, by_w = jax.grad(loss, (0, 1))(x, w)
    return by_x, jax.lax.psum(by_w, "n")
cgj.enable()
assert equal(jax.jit(jax.grad(loss, (0, 1)))(x, W), expected)
assert {row.by for row in cgj.report().rows} == {"XLA"}, cgj.report()
cgj.enable(layers=lambda conv: True)
sharded = jax.shard_map(mapped, mesh=mesh, in_specs=(P("n"), P()), out_specs=(P("n"), P()), check_vma=False)
assert equal(jax.jit(sharded)(x, W), expected)
assert {row.by for row in cgj.report().rows} == {"tvmconvgrad"}, cgj.report()
split = jnp.stack(jnp.split(X, 2))
by_x, by_w = jax.pmap(mapped, axis_name="n", in_axes=(0, None))(split, W)
assert equal((by_x.reshape(X.shape), by_w[0]), expected)
print("right")
"""
SERIALIZED = """
from jax.experimental import serialize_executable as kept
import pickle, pathlib
path = pathlib.Path(sys.argv[1])
cgj.enable()
if not path.exists():
    path.write_bytes(pickle.dumps(kept.serialize(jax.jit(conv).lower(X, W).compile())))
else:
    program = kept.deserialize_and_load(*pickle.loads(path.read_bytes()))
    try:
        program(X, W)
    except Exception as error:
        print("compiled in another process" in str(error))
    conv(X, W)  # which brings the kernel
    got = program(X, W)
    cgj.disable()
    assert equal(got, conv(X, W))
"""


def run(program: str, *words: str, **variables: str) -> str:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"} | variables
    command = [sys.executable, "-c", SETUP + program, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_programs_in_the_persistent_compilation_cache(tmp_path: Path) -> None:
    """In another process they find their kernels, in the cache of kernels or newly built."""
    assert run(KEPT, str(tmp_path)) == "0"
    assert int(run(KEPT, str(tmp_path))) > 0
    assert int(run(KEPT, str(tmp_path), TVMCONVGRAD_CACHE_DIR=str(tmp_path / "kernels"))) > 0


def test_a_serialized_program_without_its_kernels_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "program")
    run(SERIALIZED, path)
    assert run(SERIALIZED, path) == "True"


def test_several_devices() -> None:
    """Programs that XLA splits are XLA's, those that JAX splits are ours."""
    assert run(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=2") == "right"


def test_threads_that_enable_at_once(tmp_path: Path) -> None:
    """XLA is given one handler, also where its library takes long to be compiled."""
    program = """
import threading, time
from tvmconvgrad.jax import handler
library, asked = handler._library, []
def slow_library():
    asked.append(None)
    time.sleep(0.5)
    return library()
handler._library = slow_library
expected = conv(X, W)
jax.clear_caches()
threads = [threading.Thread(target=cgj.enable) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert equal(conv(X, W), expected)
print(len(asked), {row.by for row in cgj.report().rows})
"""
    assert run(program, TVMCONVGRAD_CACHE_DIR=str(tmp_path / "kernels")) == "1 {'tvmconvgrad'}"


def test_a_kernel_that_cannot_be_built() -> None:
    """The call that waits for it says why, and the next compilation is XLA's."""
    program = """
from tvmconvgrad.jax import building
from concurrent.futures import Future
expected = conv(X, W)
futures = []
building.in_background = lambda *_: futures.append(Future()) or futures[-1]
cgj.enable()
import threading
threading.Timer(0.5, lambda: futures[0].set_exception(RuntimeError("no luck"))).start()
try:
    conv(X, W).block_until_ready()
except Exception as error:
    print("RuntimeError: no luck" in str(error))
jax.clear_caches()
assert equal(conv(X, W), expected)
assert cgj.report().rows[-1].by == "XLA" or cgj.report().rows[0].by == "XLA"
"""
    assert run(program) == "True"


def test_nothing_may_be_built() -> None:
    """XLA computes, and the report says why."""
    program = """
cgj.enable()
conv(X[:, :7], W)
(row,) = cgj.report().rows
print(row.by, row.why.partition(":")[0])
"""
    assert run(program, TVMCONVGRAD_BUILD="never") == "XLA MissingKernel"
