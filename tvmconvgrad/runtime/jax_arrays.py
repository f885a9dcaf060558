"""JAX's arrays on the CPU. Imported when the first one is seen; JAX itself is the caller's."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmconvgrad.runtime.arrays import NumpyKind, Tensor, WrongDevice, dtype_of

_INSTEAD = "with tvmconvgrad.jax.enable(), jax.lax.conv_general_dilated and its gradients are these kernels there"


class _JaxKind(NumpyKind):
    """NumPy's views of JAX's arrays, and results that become arrays beside the one that is given."""

    def __init__(self, jax: Any, like: Any) -> None:
        self.jax = jax
        # what is not bound to a device stays so; several devices are none of them
        self.device = like.sharding if like.committed and len(like.devices()) == 1 else None

    def finished(self, value: Any) -> Any:
        return self.jax.device_put(value, self.device)


def understand(name: str, value: Any, jax: Any, writes: bool) -> Tensor:
    """Look at an array of the module `jax`; raises TypeError or ValueError, which name it, for what no kernel takes."""
    if isinstance(value, jax.core.Tracer):
        what = "a tracer of JAX, inside of jit, grad or vmap, and has no elements yet"
        raise TypeError(f"{name}: is {what}, expected an array; {_INSTEAD}")
    if writes:
        raise ValueError(f"{name}: is read-only: a jax.Array never changes; without {name} the result is a new one")
    dtype = dtype_of(name, value.dtype)
    try:
        platforms = sorted({device.platform for device in value.devices()})
        if platforms == ["cpu"]:
            view = np.asarray(value)
            return Tensor(view, view.shape, dtype, _JaxKind(jax, value))
    except Exception as reason:  # deleted or donated, or on another machine
        raise ValueError(f"{name}: a jax.Array cannot be read: {reason}") from reason
    raise WrongDevice(f"{name}: is on {' and '.join(platforms)}, expected the CPU, for which the kernel is")
