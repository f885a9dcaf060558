"""A bundle's C code under sanitizers, called by several threads at once: workspaces, races, addresses."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest

from tests.deploy.bundles import DTYPE_NAMES, LAYERS, PATIENCE, PROGRAMS, check_program, compiler, run, write_examples
from tvmconvgrad.machines.host import host_architecture
from tvmconvgrad.machines.targets import parse_target

SANITIZERS = ("-fsanitize=thread", "-fsanitize=address,undefined")
PIECES = {"ONE": 100, "OTHER": 4097, "TASK_ONE": 64, "TASK_OTHER": 1}
CALLS = 2000
"""Of functions in C, with arguments at random."""
CHECKED = [layer for layer in LAYERS if layer.name in ("dense 3x3", "pointwise", "depthwise", "up", "wide")]


@pytest.mark.slow
@pytest.mark.parametrize("check", SANITIZERS)
def test_threads_that_call_at_once(check: str, tmp_path: Path) -> None:
    from tvmconvgrad.deploy.bundle import build_bundle, make_plan

    need(check, tmp_path)
    gradients = [one for layer in CHECKED for dtype in DTYPE_NAMES for one in layer.gradients(dtype=dtype)]
    plan = make_plan("checked", gradients, [parse_target()], host_architecture(), static=True)
    build_bundle(plan, tmp_path / "bundle", lambda what, done, total: None, (check, "-g"))
    examples = tmp_path / "examples"
    examples.mkdir()
    write_examples(examples, {wanted.name: wanted.gradient for wanted in plan.wanted})
    for static in (False, True):
        program = tmp_path / f"check-{static}"
        check_program(tmp_path / "bundle", "checked", program, check, static=static)
        for threads, callers in ((1, 3), (4, 1), (4, 4)):
            assert clean(program, examples, threads, callers).startswith(f"{len(gradients)} kernels")
    check_program(tmp_path / "bundle", "checked", tmp_path / "fuzz", check, static=True, source="fuzz_call.c")
    for seed in (1, datetime.datetime.now(datetime.timezone.utc).date().toordinal()):
        assert clean(tmp_path / "fuzz", seed, CALLS) == "ok\n", f"with seed {seed}"


@pytest.mark.parametrize("check", ["-O2", *SANITIZERS])
def test_every_task_has_its_own_memory(check: str, tmp_path: Path) -> None:
    from tvmconvgrad import csrc
    from tvmconvgrad.deploy import bundle

    need(check, tmp_path)
    sizes = {
        "WORKSPACE": bundle.stack_bytes(list(PIECES.values())),
        "EACH": bundle.stack_bytes([PIECES["TASK_ONE"], PIECES["TASK_OTHER"]]),
    }
    defines = [f"-D{name}={value}" for name, value in (PIECES | sizes).items()]
    folders = [f"-I{csrc.FOLDER}", f"-I{Path(bundle.__file__).parent}"]
    options = ["-std=gnu11", "-O1", "-g", "-pthread", check, *defines, *folders]
    run([compiler(), *options, PROGRAMS / "stress_call.c", "-o", tmp_path / "stress"])
    assert clean(tmp_path / "stress") == "ok\n"


def need(check: str, folder: Path) -> None:
    """Skip where the C compiler has no such sanitizer."""
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    words = [compiler(), check, folder / "empty.c", "-o", folder / "empty"]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip(f"{words[0]} cannot link with {check}")


def clean(*words: object) -> str:
    """What a program prints that no sanitizer complains of."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=PATIENCE)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this system's address layout is too random for the thread sanitizer")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
