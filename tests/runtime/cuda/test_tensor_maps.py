"""Tensor maps: what the driver is told of a tensor, when it is told, and what a bundle keeps of them."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.building.compilers import compiler
from tests.support.gpu.driver import FakeGpus
from tvmconvgrad.bundles import fields
from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.nvidia import driver
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.nvidia.tensor_maps import TensorMap
from tvmconvgrad.runtime.cuda.function import CudaFunction, Where

PIXELS = TensorMap("second", "f16", (64, 10, 9, 2), (64, 32), 128, ((-1, -2), (0, -1)), (2, 1))
FILTER = TensorMap(512, "bf16", (32, 16, 3), (32, 16, 1), 64)
FOLDER = Path(__file__).parents[2] / "support" / "gpu"
# Copies the map that it is passed to the address that it is passed.
PROBE = """
#include <string.h>
void run_probe(const unsigned *grid, const unsigned *block, void **arguments) {
    memcpy(*(void **)arguments[1], arguments[0], 128);
}
"""


class Seen(ctypes.Structure):
    """tests/support/gpu/tensor_map.h."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("rank", "item", "line_bytes", "pixels")),
        *((name, ctypes.c_uint * 5) for name in ("sizes", "steps")),
        ("extents", ctypes.c_int * 5),
        *((name, ctypes.c_int * 3) for name in ("lower", "upper")),
    )


@pytest.fixture
def probe(tmp_path: Path, gpus: FakeGpus) -> bytes:
    """A module's image with the function `probe`."""
    source, image = tmp_path / "probe.c", tmp_path / "probe.so"
    source.write_text(PROBE)
    subprocess.run([compiler(), "-w", "-shared", "-fPIC", str(source), "-o", str(image)], check=True)
    return str(image).encode() + b"\0"


def passed(function: CudaFunction, second: int, out: Any, workspace: int = 0) -> Seen:
    """What a launch on tensors at these addresses is passed."""
    function(Where(0, 0), 0, second, out.ctypes.data, workspace)
    return Seen.from_buffer_copy(out.tobytes())


def function_of(image: bytes, tensor_map: TensorMap) -> CudaFunction:
    return CudaFunction(image, [Launch("probe", (1, 1, 1), (1, 1, 1), 0, (tensor_map, "out"))], "sm_90a")


def first(values: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(values[:count])


def test_a_kernel_is_passed_the_map_of_its_tensor(probe: bytes, gpus: FakeGpus) -> None:
    gpus.set_up()
    seen = passed(function_of(probe, PIXELS), 4096, np.zeros(128, np.uint8))
    assert (seen.memory, seen.rank, seen.line_bytes, seen.pixels) == (4096, 4, 128, 1)
    assert first(seen.sizes, 4) == (64, 10, 9, 2)
    assert first(seen.steps, 4) == (1, 2, 1, 1)
    assert first(seen.extents, 2) == (64, 32)
    assert (first(seen.lower, 2), first(seen.upper, 2)) == ((-1, 0), (-2, -1))


def test_a_map_of_workspace(probe: bytes, gpus: FakeGpus) -> None:
    gpus.set_up()
    seen = passed(function_of(probe, FILTER), 4096, np.zeros(128, np.uint8), workspace=8192)
    assert (seen.memory, seen.rank, seen.line_bytes, seen.pixels) == (8704, 3, 64, 0)
    assert (first(seen.sizes, 3), first(seen.extents, 3)) == ((32, 16, 3), (32, 16, 1))


def test_a_map_is_made_again_where_the_tensor_lies_elsewhere(probe: bytes, gpus: FakeGpus) -> None:
    gpus.set_up()
    function, out = function_of(probe, PIXELS), np.zeros(128, np.uint8)
    for address, made in ((4096, 1), (4096, 1), (8192, 2), (4096, 3)):
        assert passed(function, address, out).memory == address
        assert gpus.log.count("map") == made


def test_a_driver_that_refuses_a_map(probe: bytes, gpus: FakeGpus) -> None:
    gpus.set_up()
    gpus.fail("cuTensorMapEncode", 801)
    with pytest.raises(driver.CudaError, match=r"cuTensorMapEncodeIm2col: a fault \(801\)"):
        passed(function_of(probe, PIXELS), 4096, np.zeros(128, np.uint8))
    assert gpus.library.fake_contexts() == 0


def test_a_driver_that_knows_no_maps(probe: bytes, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.set_up()
    known = {name: each for name, each in gpus.driver._functions.items() if "TensorMap" not in name}
    monkeypatch.setattr(gpus.driver, "_functions", known)
    with pytest.raises(driver.CudaError, match="driver for NVIDIA GPUs is older than CUDA 12"):
        passed(function_of(probe, PIXELS), 4096, np.zeros(128, np.uint8))


@pytest.mark.parametrize("tensor_map", [PIXELS, FILTER], ids=["pixels", "filter"])
def test_what_json_keeps(tensor_map: TensorMap) -> None:
    launch = Launch("probe", (1, 2, 3), (4, 5, 6), 7, (tensor_map, "out", 256))
    data = json.loads(json.dumps(launch.to_dict()))
    assert Launch.from_dict(data) == launch
    assert fields.arguments("arguments", data["arguments"]) == launch.arguments


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensor": "third"}, r"arguments\[0\].tensor: got 'third'"),
        ({"dtype": "f32"}, r"arguments\[0\].dtype: got 'f32', expected one of f16, bf16"),
        ({"sizes": [64, -1]}, "-1 is not from 0"),
        ({"box": "all"}, "box: got 'all' of type str, expected a list"),
        ({"line_bytes": 48}, "line_bytes: got 48, expected one of 32, 64, 128"),
        ({"line_bytes": [64]}, "line_bytes: got .64."),
        ({"corners": [[0]]}, r"corners: got \[\[0\]\], expected pairs of ints"),
        ({"corners": [[0, 0.5]]}, "0.5 of type float"),
        ({"more": 1}, "'more': unknown"),
    ],
)
def test_what_a_manifest_may_not_say(change: dict[str, Any], words: str) -> None:
    (data, *_) = Launch("probe", (1, 1, 1), (1, 1, 1), 0, (PIXELS,)).to_dict()["arguments"]
    with pytest.raises(BundleError, match=words):
        fields.arguments("arguments", [{**data, **change}])
