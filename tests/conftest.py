"""For all tests: a store of kernels of their own, filled ahead by several processes where a module asks for many."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.building.compiling_here import compile_here
from tests.support.building.prefetch import prefetch
from tests.support.gpu.driver import FakeGpus, make_driver, patch_toolkit
from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.runtime import threads

_folder = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    # before any test module is imported, and for all child processes: no test takes a kernel from the user's cache
    config.stash[_folder] = folder = tempfile.TemporaryDirectory(prefix="tvmconvgrad-tests-")
    os.environ["TVMCONVGRAD_CACHE_DIR"] = folder.name
    os.environ["TVMCONVGRAD_TUNING_DIR"] = os.path.join(folder.name, "no-logs")


def pytest_collection_finish() -> None:
    # All items stay until the end: a test that collects garbage need not look at them again, which takes half a second.
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_folder].cleanup()


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    """A number of threads that a test sets goes before the environment variable in all later ones."""
    before = threads._requested
    yield
    threads._requested = before
    threads.forget()


@pytest.fixture(scope="module", autouse=True)
def kernels_ahead(request: pytest.FixtureRequest) -> None:
    """Build in parallel the kernels of a module's selected tests: of those with a parameter that has a `call`."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    parameters = (value for item in here for value in item.callspec.params.values())
    prefetch(value.call for value in parameters if hasattr(value, "call"))


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    """An empty cache in a folder that does not exist yet."""
    return KernelCache(tmp_path / "cache")


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeGpus:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpus(
    fake_driver: FakeGpus, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpus]:
    """Two GPUs that are not there. Kernels for them are of the rule `naive`, and kept nowhere."""
    from tvmconvgrad.common import process
    from tvmconvgrad.nvidia import driver

    fake_driver.set_up(devices=2)
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o700)
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(cache))
    monkeypatch.setattr(driver, "driver", lambda: fake_driver.driver)
    patch_toolkit(monkeypatch, tmp_path_factory.mktemp("code"))
    compile_here(monkeypatch)
    process.forget()
    gc.collect()
    fake_driver.driver._discarded.clear()  # of other tests
    yield fake_driver
    process.forget()
