"""One bundle for all tests: of small layers, in three types, for several CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import fails, invoke
from tests.deploy.bundles import DTYPE_NAMES, LAYERS, TARGETS, write_examples
from tests.tuning.conftest import logs_here
from tvmconvgrad.layers import LayerGradient

__all__ = ["built", "fails", "invoke", "logs_here"]


@dataclass(frozen=True)
class Built:
    """A bundle, its name, its kernels' gradients by name, and a folder with what they must compute."""

    folder: Path
    name: str
    gradients: dict[str, LayerGradient]
    examples: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    from tvmconvgrad.deploy.api import build

    folder, examples = tmp_path_factory.mktemp("bundle") / "small", tmp_path_factory.mktemp("examples")
    build(LAYERS, folder, targets=TARGETS, name="small", static=True, dtypes=DTYPE_NAMES)
    found = [gradient for layer in LAYERS for dtype in DTYPE_NAMES for gradient in layer.gradients(dtype=dtype)]
    gradients = {f"{one.layer.name.replace(' ', '_')}_{one.dtype}_{one.kind}": one for one in found}
    write_examples(examples, gradients)
    return Built(folder, "small", gradients, examples)
