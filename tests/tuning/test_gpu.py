"""Tuning for GPUs: candidates are built by the toolkit, measured on a GPU that is not there, and logged by its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost")
pytest.importorskip("psutil")

from tests.tuning.conftest import OP, SHAPES
from tvmconvgrad.cache.entry import Entry, pack, read_entry
from tvmconvgrad.compiler.cuda import compiler, toolkit
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.nvidia.launches import Launch
from tvmconvgrad.records import lookup
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec.reducing.merging import merged
from tvmconvgrad.tuning.search.inputs import WrongResult
from tvmconvgrad.tuning.search.search import Limits, Search
from tvmconvgrad.tuning.search.strategy import Decisions
from tvmconvgrad.tuning.session import Budget, Session
from tvmconvgrad.tuning.workers.measure import LocalMeasurer
from tvmconvgrad.tuning.workers.measure_worker_cuda import GpuMeasuring
from tvmconvgrad.tuning.workers.pool import Pool

needs_nvcc = pytest.mark.skipif(toolkit.find_nvcc() is None, reason="CUDA's nvcc is not installed")
SM_90 = parse_target("cuda -arch=sm_90")
TASK = Task(merged(OP.problem(*SHAPES, dtype="f32")), SM_90, 1, "some GPU", ("small/filters",))


@pytest.fixture
def library(gpus: Any, tmp_path: Path) -> Path:
    """A candidate by the rule `threads`, that runs on what is not there."""
    image, facts = compiler.compile_problem(TASK.problem, SM_90)
    path = tmp_path / "right"
    path.write_bytes(pack(Entry.of({"arch": "sm_90"}, image, facts)))
    path.chmod(0o600)
    return path


def prepared(library: Path) -> GpuMeasuring:
    found = GpuMeasuring()
    found.prepare({"do": "prepare", "problem": TASK.problem.to_dict(), "threads": 1, "library": str(library)})
    return found


def test_measuring_on_a_gpu(gpus: Any, library: Path) -> None:
    worker = prepared(library)
    held = gpus.library.fake_allocated()
    answer = worker.measure({"library": str(library), "limit": 1.0})
    assert set(answer["seconds"]) == {0.5e-3}  # as that driver has it
    assert worker.measure({"library": str(library), "limit": 1e-6}) == {"seconds": [0.5e-3]}
    assert worker.compare({"libraries": [str(library)] * 2, "rounds": 4})["seconds"] == [[0.5e-3] * 4] * 2
    assert gpus.library.fake_allocated() == held
    assert gpus.library.fake_contexts() == 0


def test_a_candidate_that_is_wrong(gpus: Any, library: Path, tmp_path: Path) -> None:
    worker = prepared(library)
    entry = read_entry(library)
    launch = Launch.from_dict(entry.facts["launches"][0])
    fewer = Launch(**{**vars(launch), "grid": (launch.grid[0] - 1, 1, 1)})  # the last block writes nothing
    wrong = tmp_path / "wrong"
    facts = {**entry.facts, "launches": [fewer.to_dict()]}
    wrong.write_bytes(pack(Entry.of(entry.description, entry.library, facts)))
    wrong.chmod(0o600)
    with pytest.raises(WrongResult, match=r"256 of 4608 elements differ from the default's"):
        worker.measure({"library": str(wrong), "limit": 1.0})


class Pretended(LocalMeasurer):
    """A GPU on which the more threads a block has the better."""

    def __init__(self) -> None:
        super().__init__("cuda")

    def prepare(self, task: Task, library: str) -> None:
        assert read_entry(Path(library)).description == {"arch": "sm_90"}

    def measure(self, library: str, limit: float) -> list[float]:
        (*_, last) = read_entry(Path(library)).facts["launches"]
        y, x, z = last["block"]
        return [1e-3 / (y * x * z)]

    def compare(self, libraries: Sequence[str], rounds: int) -> list[list[float]]:
        return [self.measure(library, 1.0) * rounds for library in libraries]


@needs_nvcc
@pytest.mark.slow
def test_a_search_for_a_gpu(tmp_path: Path) -> None:
    with (
        Pool("tvmconvgrad.tuning.workers.build_worker", 1) as pool,
        Search(Decisions(TASK), tmp_path, pool, Pretended()) as search,
    ):
        found = search.run(Limits(6))
    assert not found.failures
    assert len(found.times) == 6
    assert len(set(found.times)) > 1


@needs_nvcc
@pytest.mark.slow
def test_what_was_found_is_logged_by_the_architecture(logs_here: Path) -> None:
    session = Session([TASK], logs_here, Budget(12, None), silent(), Pretended(), again=True)
    session.run()
    (entry,) = session.entries
    assert (logs_here / "cuda-arch=sm_90" / "entries.jsonl").exists()
    found = lookup.find(TASK.problem, SM_90)
    assert found.choice == entry.choice
    assert lookup.find(TASK.problem, parse_target("cuda -arch=sm_80")).choice is None
    if found.choice is not None:
        built = compiler.build(TASK.problem, SM_90, choice=found.choice)
        assert str(built.scheduled) == found.choice.plan


def silent() -> Any:
    from tvmconvgrad.tuning.progress import Quiet

    return Quiet()
