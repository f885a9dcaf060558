"""What the tests on GPUs need, and why they are skipped where it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tvmconvgrad as cg
from tests.gpu import bundles
from tvmconvgrad.bundles import registry
from tvmconvgrad.nvidia.driver import MissingGpu, driver

VARIABLE = "TVMCONVGRAD_GPU_BUNDLES"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


def _obstacle() -> str | None:
    """Why no test of this folder can run."""
    try:
        driver()
    except MissingGpu as reason:
        return str(reason)
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed, which the results are compared with"
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def _need_compiler(beginning: str = "") -> None:
    """Skip a test that builds kernels where that is not possible."""
    from tvmconvgrad.compiler.cuda import toolkit

    pytest.importorskip("tvm", reason=f"{beginning}TVM is not installed to build them")
    if toolkit.find_nvcc() is None:
        pytest.skip(f"{beginning}CUDA's toolkit is not installed to build them")


@pytest.fixture(scope="session")
def compiler_for_gpus() -> None:
    """A GPU, and what kernels for it are built with."""
    obstacle = _obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    _need_compiler("kernels are built when they are called, and ")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundles, built ahead or, where that is possible, now."""
    obstacle = _obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    _need_compiler(f"{VARIABLE} names no bundles, and ")
    path = tmp_path_factory.mktemp("bundles")
    bundles.build(path, [driver().architecture(0)])
    return path


@pytest.fixture(scope="session")
def bundle(request: pytest.FixtureRequest, folder: Path) -> cg.Bundle:
    """The bundle that a test names as its parameter."""
    return cg.load(folder / request.param)


@pytest.fixture
def in_use(folder: Path) -> Iterator[cg.Bundle]:
    """The first bundle, where operators find their kernels; nothing is built."""
    yield cg.use(folder / "nxc", build=False)
    registry.forget()
