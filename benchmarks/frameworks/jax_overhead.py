"""What a call of a tiny convolution costs within a program of JAX, in microseconds of processor time.

    python benchmarks/frameworks/jax_overhead.py

The program is a loop of such calls, on one thread. The kernel's own time is the fastest of its calls.
"""

from __future__ import annotations

import os
import time

CALLS, ROUNDS = 20_000, 7


def main() -> None:
    """By XLA, and by our kernel."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # before JAX counts CPUs
    import jax
    import jax.numpy as jnp
    from jax import lax

    import tvmconvgrad.jax as cgj

    x, w = jnp.ones((1, 4, 4, 8)), jnp.full((3, 3, 8, 8), 0.01)
    numbers = ("NHWC", "HWIO", "NHWC")

    @jax.jit
    def loop(x: jax.Array, count: int) -> jax.Array:
        def once(_: int, x: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

        return lax.fori_loop(0, count, once, x)

    expected = loop(x, 3)
    for who in ("XLA", "ours"):
        if who == "ours":
            cgj.enable()
        if not jnp.allclose(loop(x, 3), expected, rtol=1e-5):
            raise SystemExit("results differ")
        times = []
        for _ in range(ROUNDS):
            loop(x, 10).block_until_ready()
            begin = time.process_time()
            loop(x, CALLS).block_until_ready()
            times.append((time.process_time() - begin) / CALLS * 1e6)
        print(f"{who:4} {min(times):5.2f} us")
    (row,) = cgj.report().rows
    print(f"of which the kernel {(row.ms or 0) * 1e3:5.2f} us")


if __name__ == "__main__":
    main()
