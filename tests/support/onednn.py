"""Intel's oneDNN as a judge, by the oracle of the test data folder; it needs the wheels onednn and onednn-devel."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import data
from tests.support.case import Case
from tests.support.convolution import Array, Tensors
from tests.support.layouts import to_canonical
from tests.support.random_cases import explicit


@cache
def oracle() -> ModuleType:
    """The module that drives oneDNN; skips the test where there is none."""
    path = data.data_folder() / "onednn_oracle" / "oracle.py"
    if not path.is_file():
        pytest.skip(data.skip_reason("onednn_oracle"))
    spec = importlib.util.spec_from_file_location("onednn_oracle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not list((Path(module.ROOT) / "lib").glob("libdnnl.so*")):
        pytest.skip("oneDNN is not installed (pip install onednn onednn-devel)")
    return module


def gradient(case: Case, tensors: Tensors) -> Array:
    """The canonical result of oneDNN's own operator of the same name.

    oneDNN gets explicit pads where its own rule for same_upper and same_lower is known to leave the specification:
    in the ConvTranspose operators, and with output_padding, which does not enter its rule.
    """
    transposed = case.operator.startswith("ConvTranspose")
    if transposed or any(case.output_padding or ()):
        case = explicit(case)
    attributes: dict[str, Any] = {**case.attributes}
    for name in ("pads_begin", "pads_end"):  # required, and ignored, with any other auto_pad
        attributes.setdefault(name, [0] * case.convolution.rank)
    inputs = case.arrays(tensors)
    if case.result == "y":
        attributes["dst_shape" if case.new_names else "output_shape"] = case.shape("y")
    if case.result == "w":
        attributes["weights_shape" if case.new_names else "filter_shape"] = case.shape("w")
    result: Array = oracle().run(case.call.operator, attributes, inputs)
    return to_canonical(result, case.axes(case.result))
