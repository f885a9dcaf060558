"""GPUs that are not there, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tvmconvgrad.operators
from tests.support.fake_gpu import FakeGpus, FakeToolkit, make_driver
from tvmconvgrad import kernels
from tvmconvgrad.build.cuda import toolkit
from tvmconvgrad.runtime.cuda import driver


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> FakeGpus:
    return make_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def gpus(
    fake_driver: FakeGpus, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeGpus]:
    """Two GPUs. What is compiled for them is kept nowhere."""
    fake_driver.set_up(devices=2)
    monkeypatch.setattr(driver, "driver", lambda: fake_driver.driver)
    monkeypatch.setattr(toolkit, "compile_source", FakeToolkit(tmp_path_factory.mktemp("code")))
    monkeypatch.setattr(kernels, "_loaded", {})
    monkeypatch.setenv("TVMCONVGRAD_CACHE_DIR", str(_private(tmp_path_factory)))
    tvmconvgrad.operators._kernel.cache_clear()
    yield fake_driver
    tvmconvgrad.operators._kernel.cache_clear()


def _private(factory: pytest.TempPathFactory) -> Path:
    folder = factory.mktemp("cache")
    folder.chmod(0o700)
    return folder
