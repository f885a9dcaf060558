"""csrc/services.c under the sanitizers of the C compiler: races, addresses, undefined behaviour; and fork."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tvmconvgrad import csrc

SOURCE = Path(__file__).with_name("stress_services.c")
PATIENCE = 300.0  # seconds: what takes longer hangs


@pytest.mark.slow
@pytest.mark.parametrize("check", ["-fsanitize=thread", "-fsanitize=address,undefined", "fork"])
def test_services_under_load(check: str, tmp_path: Path) -> None:
    cc = shutil.which("gcc") or shutil.which("clang")
    if cc is None:
        pytest.skip("no gcc or clang")
    program, fork = tmp_path / "stress", check == "fork"
    options = ["-O1", "-g", "-pthread", f"-I{csrc.FOLDER}"] + ([] if fork else [check])
    built = subprocess.run([cc, *options, str(SOURCE), "-o", str(program)], capture_output=True, text=True)
    if built.returncode and not fork:
        pytest.skip(f"{cc} cannot link with {check}: {built.stderr[-200:]}")
    assert built.returncode == 0, built.stderr
    arguments = [str(program), *(["fork"] if fork else [])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this system's address layout is too random for the thread sanitizer")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
