"""The three element types: f32, f16 and bf16."""

from __future__ import annotations

from tvmconvgrad.spec.values import plain, show

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
DTYPES = tuple(ITEM_BYTES)

_NAMES = {"f32": "f32", "float32": "f32", "f16": "f16", "float16": "f16", "bf16": "bf16", "bfloat16": "bf16"}


def parse_dtype(value: object) -> str:
    """Return "f32", "f16" or "bf16" for such a name, a NumPy dtype or scalar type, or a torch dtype.

    Raises ValueError, which names the three, for anything else, also for a type in foreign byte order.
    """
    names = (value, getattr(value, "name", None), getattr(value, "__name__", None))
    # a torch dtype has no name but its words; anything else may fail to have one
    name = next((plain(name) for name in names if isinstance(name, str)), None) or show(value)
    dtype = _NAMES.get(name.removeprefix("torch."))
    if dtype is None or getattr(value, "isnative", True) is False:
        raise ValueError(f"dtype: {show(value)} is not supported, expected f32, f16 or bf16")
    return dtype
