"""Workers with libraries that crash, hang or compute nonsense: one trial each, and the next one is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.tuning.conftest import OP, SHAPES
from tvmconvgrad import csrc
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.records.task import Task
from tvmconvgrad.spec import Problem
from tvmconvgrad.tuning.workers import measure, measure_worker
from tvmconvgrad.tuning.workers.measure import LocalMeasurer
from tvmconvgrad.tuning.workers.measure_worker import Measuring, make_inputs
from tvmconvgrad.tuning.workers.pool import Pool, TrialFailed, Worker

LIBRARY = csrc.FOLDER / "library.c"
BODIES = {
    "crash": "*(volatile int *)0 = 1; return 0;",
    "hang": "for (;;) ;",
    "nonsense": "return 0;",
    "fails": "return -1;",
    "leaves": "_exit(0);",
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of a kernel that is right, and of some that are not."""
    from tvmconvgrad.compiler.llvm import compile_problem
    from tvmconvgrad.spec.reducing.merging import merged

    folder = tmp_path_factory.mktemp("libraries")
    paths = {name: folder / f"{name}.so" for name in ("right", *BODIES)}
    paths["right"].write_bytes(compile_problem(merged(OP.problem(*SHAPES)), parse_target(None))[0])
    for name, body in BODIES.items():
        source = folder / f"{name}.c"
        source.write_text(f"#include <unistd.h>\nint __tvm_ffi_main(void *s, void *a, int n, void *r) {{ {body} }}\n")
        command = ["gcc", "-shared", "-fPIC", "-pthread", str(source), str(LIBRARY), "-o", str(paths[name])]
        subprocess.run(command, check=True)
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def measurer(task: Task, libraries: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalMeasurer]:
    monkeypatch.setattr(measure, "RUN_SECONDS", 5.0)
    found = LocalMeasurer()
    found.prepare(task, libraries["right"])
    yield found
    found.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("crash", "the process ended with -11"),
        ("hang", "it took too long"),
        ("nonsense", "4608 of 4608 elements differ"),
        ("fails", "MemoryError: no memory for the workspace"),
        ("leaves", "the process ended with 0"),
    ],
)
def test_a_failure_is_told_and_the_next_is_measured(
    name: str, why: str, measurer: LocalMeasurer, libraries: dict[str, str]
) -> None:
    with pytest.raises(TrialFailed, match=why):
        measurer.measure(libraries[name], 1.0)
    assert min(measurer.measure(libraries["right"], 1.0)) > 0


def test_who_is_slow_is_measured_once(measurer: LocalMeasurer, libraries: dict[str, str]) -> None:
    assert len(measurer.measure(libraries["right"], 1e-9)) == 1
    assert len(measurer.measure(libraries["right"], 1.0)) > 1


def test_comparing_measures_all_in_each_round(measurer: LocalMeasurer, libraries: dict[str, str]) -> None:
    one, other = measurer.compare([libraries["right"]] * 2, 5)
    assert len(one) == len(other) == 5
    assert 0.2 < sorted(one)[2] / sorted(other)[2] < 5


def test_half_of_a_round_is_on_tensors_that_no_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    worker = Measuring()
    worker.hold(tuple(np.ones(2 << 20, np.float32) for _ in range(3)))
    monkeypatch.setattr(worker, "_load", lambda _: lambda *tensors: used.append(id(tensors[-1])))
    monkeypatch.setattr(measure_worker, "loops", lambda _: 4)
    found = worker.compare({"libraries": ["one", "other"], "rounds": 2})["seconds"]
    assert [len(each) for each in found] == [2, 2]
    rounds = [used[place:][:9] for place in range(len(used) - 2 * 2 * 9, len(used), 9)]  # one call is not timed
    near = id(worker.near[-1])
    assert all(each[:5] == [near] * 5 and near not in each[5:] for each in rounds)
    assert all(each[5:7] == each[7:] and each[5] != each[6] for each in rounds)  # two copies of 24 MB


def test_small_tensors_have_many_copies_and_large_ones_none() -> None:
    small, large = (np.zeros(size, np.float32) for size in (1 << 14, 1 << 24))
    copies = measure_worker.copies((small, small))
    assert len(copies) * 2 * small.nbytes == 64 << 20
    assert len({id(array) for tensors in copies for array in tensors}) == 2 * len(copies)
    assert measure_worker.copies((large, large))[0][0] is large


def test_inputs_are_small_integers_at_cache_lines(problem: Problem) -> None:
    inputs = make_inputs(problem)
    assert tuple(array.shape for array in inputs) == problem.input_shapes
    assert all(np.unique(array).tolist() == [-3, -2, -1, 0, 1, 2, 3] for array in inputs)
    assert all(array.ctypes.data % 64 == 0 for array in inputs)


def test_a_default_that_fails_is_told(task: Task, libraries: dict[str, str], problem: Problem) -> None:
    measurer = LocalMeasurer()
    measurer.prepare(task, libraries["crash"])
    with pytest.raises(TrialFailed, match="-11"):
        measurer.measure(libraries["right"], 1.0)
    measurer.close()


def test_a_worker_ends_with_its_parent() -> None:
    program = (
        "from tvmconvgrad.tuning.workers.pool import Worker\n"
        "worker = Worker('tvmconvgrad.tuning.workers.measure_worker')\n"
        "worker.start()\nprint(worker.pid, flush=True)\nimport os\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.stdout.strip(), "no worker was started"
    worker = Path(f"/proc/{done.stdout.strip()}/cmdline")
    for _ in range(100):
        if not worker.exists() or b"measure_worker" not in worker.read_bytes():
            return
        __import__("time").sleep(0.1)
    pytest.fail("the worker lives on")


def test_a_module_that_is_none_is_told() -> None:
    worker = Worker("tvmconvgrad.tuning.nothing")
    with pytest.raises(TrialFailed, match="No module named"):
        worker.ask({"do": "measure"}, 30.0)
    worker.close()


def test_a_closed_pool_starts_nobody() -> None:
    with Pool("tvmconvgrad.tuning.nothing", 1) as pool, pytest.raises(TrialFailed, match="No module named"):
        pool.ask({"do": "describe"}, 30.0)
    with pytest.raises(RuntimeError, match="closed"):
        pool.ask({"do": "describe"}, 30.0)
    assert not pool._workers
