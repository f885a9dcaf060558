"""C and C++ programs that call a bundle: results, the workspace, threads, levels of CPUs, errors."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.deploy.bundles import LAYERS, LEVELS, STRICT, check_program, compiler, run
from tests.deploy.conftest import Built
from tvmconvgrad.machines.host import host_architecture

on_x86 = pytest.mark.skipif(host_architecture() != "x86_64", reason="levels of x86-64")
needs_qemu = pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64")


@pytest.fixture(scope="module")
def program(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "check"
    check_program(built.folder, built.name, path)
    return path


@pytest.mark.parametrize(("threads", "callers"), [(1, 1), (2, 1), (5, 1), (3, 3)])
def test_every_kernel_equals_the_reference(built: Built, program: Path, threads: int, callers: int) -> None:
    answer = run([program, built.examples, threads, callers])
    assert answer.startswith(f"{len(built.gradients)} kernels for llvm")


def test_the_static_library_is_the_same(built: Built, tmp_path: Path) -> None:
    check_program(built.folder, built.name, tmp_path / "check", static=True)
    assert run([tmp_path / "check", built.examples, 2, 2]).startswith(f"{len(built.gradients)} kernels")


@pytest.mark.parametrize(("threads", "callers"), [(3, 1), (2, 2)])
def test_calls_run_on_openmps_threads(built: Built, tmp_path: Path, threads: int, callers: int) -> None:
    check_program(built.folder, built.name, tmp_path / "check", "-fopenmp")
    assert run([tmp_path / "check", built.examples, threads, callers]).startswith(f"{len(built.gradients)} kernels")


@on_x86
@needs_qemu
@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "level"), [("Nehalem", "x86-64-v2"), ("Haswell", "x86-64-v3")])
def test_lesser_cpus_take_the_best_that_they_have(built: Built, program: Path, cpu: str, level: str) -> None:
    # an instruction that the emulated CPU has not ends the process
    answer = run(
        ["qemu-x86_64", "-cpu", f"{cpu},-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm", program, built.examples, 2, 1]
    )
    assert answer == f"{len(built.gradients)} kernels for llvm -mcpu={level}\n"
    assert level in LEVELS


FAILURES = """
#include "small.h"
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    enum { X = SMALL_DENSE_3X3_F32_FILTERS_INPUT_FORWARD_SIZE, Y = SMALL_DENSE_3X3_F32_FILTERS_OUTPUT_DELTA_SIZE };
    enum { W = SMALL_DENSE_3X3_F32_FILTERS_FILTER_DELTA_SIZE, LEAST = SMALL_DENSE_3X3_F32_FILTERS_WORKSPACE_BYTES };
    float *x = (float *)calloc(X + 1, 4), *y = (float *)calloc(Y, 4), *w = (float *)calloc(W + X, 4);
    char *memory = (char *)malloc(LEAST + 128), *space = memory + (64 - (size_t)memory % 64) % 64;
    printf("%d ", small_dense_3x3_f32_filters(NULL, y, w, NULL, 0) == SMALL_NULL_POINTER);
    printf("%d ", small_dense_3x3_f32_filters(x, NULL, w, NULL, 0) == SMALL_NULL_POINTER);
    printf("%d ", small_dense_3x3_f32_filters(x, y, NULL, NULL, 0) == SMALL_NULL_POINTER);
    printf("%d ", small_dense_3x3_f32_filters((float *)((char *)x + 2), y, w, NULL, 0) == SMALL_MISALIGNED);
    printf("%d ", small_dense_3x3_f32_filters(x, y, w, space + 32, LEAST) == SMALL_MISALIGNED);
    printf("%d ", small_dense_3x3_f32_filters(x, y, w, space, LEAST - 1) == SMALL_WORKSPACE_TOO_SMALL);
    printf("%d ", small_dense_3x3_f32_filters(x, y, w, space, LEAST) == SMALL_OK);
    printf("%d ", small_dense_3x3_f32_filters(w + W - 1, y, w, NULL, 0) == SMALL_OVERLAP);
    printf("%d ", small_dense_3x3_f32_filters(w + W, y, w, NULL, 0) == SMALL_OK);
    printf("%d ", small_set_threads(0) == SMALL_BAD_THREADS && small_set_threads(4097) == SMALL_BAD_THREADS);
    printf("%d\\n", small_set_threads(4096) == SMALL_OK && small_get_threads() == 4096);
    for (int status = -1; status < 20; ++status) puts(small_status_text(status));
    return 0;
}
"""


def test_what_a_caller_got_wrong_comes_back_as_a_status(built: Built, tmp_path: Path) -> None:
    (tmp_path / "failures.c").write_text(FAILURES)
    words = [compiler(), "-std=c99", *STRICT, f"-I{built.folder}", tmp_path / "failures.c", built.folder / "libsmall.a"]
    run([*words, "-lm", "-pthread", "-o", tmp_path / "failures"])
    first, *texts = run([tmp_path / "failures"]).splitlines()
    assert first == " ".join("1" * 11)
    assert len(set(texts)) == 10


@pytest.mark.parametrize(
    "language", ["gcc -std=c99", "gcc -std=c99 -pedantic", "g++ -std=c++11", "g++ -x c++ -std=c++20 -pedantic"]
)
def test_the_example_builds_as_it_stands(built: Built, language: str, tmp_path: Path) -> None:
    name, *options = language.split()
    words = [
        compiler(name),
        *options,
        *STRICT,
        "-O2",
        built.folder / "example.c",
        f"-I{built.folder}",
        f"-L{built.folder}",
    ]
    run([*words, "-lsmall", f"-Wl,-rpath,{built.folder}", "-o", tmp_path / "example"])
    answer = run([tmp_path / "example"])
    assert re.fullmatch(r"small_\w+ for llvm \S+: checksum [0-9a-f]{8}\n", answer)


def test_the_library_needs_nothing_but_libc(built: Built) -> None:
    names = re.findall(r"^\s*(\S+?)\.so", run(["ldd", built.folder / "libsmall.so"]), re.MULTILINE)
    loader = [name for name in names if "ld-linux" in name or "vdso" in name]
    assert "libc" in names
    assert set(names) - set(loader) <= {"libc", "libm", "libpthread"}


def test_only_what_the_header_declares_and_python_calls_is_visible(built: Built) -> None:
    header = (built.folder / "small.h").read_text()
    declared = {*re.findall(r"\b(small_\w+)\(", header), "small_python_method_4", "small_run_by_openmp_2"}
    for words in (
        ["nm", "-D", "--defined-only", built.folder / "libsmall.so"],
        ["nm", "-g", "--defined-only", built.folder / "libsmall.a"],
    ):
        assert set(re.findall(r"^[0-9a-f]+ [A-Z] (\w+)$", run(words), re.MULTILINE)) == declared


def test_with_one_thread_none_is_started(built: Built, program: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("no strace")
    run(["strace", "-f", "-o", tmp_path / "trace", "-e", "trace=clone,clone3", program, built.examples, 1, 1])
    assert len(re.findall("clone3?\\(", (tmp_path / "trace").read_text())) == 1  # the caller's


def test_pkg_config_finds_it_wherever_it_lies(built: Built, tmp_path: Path) -> None:
    if shutil.which("pkg-config") is None:
        pytest.skip("no pkg-config")
    moved = tmp_path / "moved"
    shutil.copytree(built.folder, moved)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(moved)}
    flags = run(["pkg-config", "--cflags", "--libs", "small"], **environment).split()
    run(
        [
            compiler(),
            moved / "example.c",
            *(flag.replace('"', "") for flag in flags),
            f"-Wl,-rpath,{moved}",
            "-o",
            tmp_path / "example",
        ]
    )
    assert "checksum" in run([tmp_path / "example"])


@pytest.mark.parametrize("target", ["small::small", "small::static"])
def test_cmake_finds_it_wherever_it_lies(built: Built, target: str, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    moved = tmp_path / "moved with a space"
    shutil.copytree(built.folder, moved)
    lists = moved / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("small::small", target))
    run(["cmake", "-S", moved, "-B", tmp_path / "build"])
    run(["cmake", "--build", tmp_path / "build"])
    assert "checksum" in run([tmp_path / "build" / "example"])


UNLOADED = """
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    float *x = (float *)calloc(1 << 20, 4), *y = (float *)calloc(1 << 20, 4), *w = (float *)calloc(1 << 20, 4);
    void *library = dlopen(words[1], RTLD_NOW);
    int (*set_threads)(int) = (int (*)(int))dlsym(library, "small_set_threads");
    int (*run)(float *, float *, float *, void *, size_t) = dlsym(library, "small_wide_f32_filters");
    int failed = set_threads(3) + run(x, y, w, NULL, 0);
    dlclose(library);
    usleep(20000); /* its threads fall asleep, and run its code meanwhile */
    return count != 2 || failed;
}
"""


def test_a_program_may_unload_it(built: Built, tmp_path: Path) -> None:
    (tmp_path / "unload.c").write_text(UNLOADED)
    run([compiler(), "-std=gnu11", tmp_path / "unload.c", "-ldl", "-o", tmp_path / "unload"])
    run([tmp_path / "unload", built.folder / "libsmall.so"])


def test_two_static_bundles_in_one_program(built: Built, tmp_path: Path) -> None:
    import tvmconvgrad as cg

    other = cg.build([LAYERS[0]], tmp_path / "other", name="other", static=True, only="data")
    calls = ["small_set_threads(2)", "other_set_threads(3)", "small_get_threads() - 2", "other_get_threads() - 3"]
    calls += [f"{name}(x, y, z, 0, 0)" for name in ("small_dense_3x3_f32_data", "other_dense_3x3_data")]
    code = f"""
#include "small.h"
#include "other.h"
static float x[1 << 16], y[1 << 16], z[1 << 16];
int main(void) {{ return {" || ".join(calls)}; }}
"""
    (tmp_path / "both.c").write_text(code)
    words = [compiler(), "-std=c99", f"-I{built.folder}", f"-I{other}", tmp_path / "both.c"]
    run([*words, built.folder / "libsmall.a", other / "libother.a", "-lm", "-pthread", "-o", tmp_path / "both"])
    run([tmp_path / "both"])


def test_the_generated_code_compiles_without_a_warning(built: Built, tmp_path: Path) -> None:
    import tvmconvgrad as cg
    from tvmconvgrad import csrc
    from tvmconvgrad.deploy import render

    made = cg.load(built.folder).manifest
    checks = {entry.target: "1" for entry in made.targets}
    (tmp_path / "bundle.c").write_text(render.render("bundle.c.jinja", made, checks))
    folders = [built.folder, Path(render.__file__).parent, csrc.FOLDER]
    options = ["-std=gnu11", "-O2", "-fPIC", *STRICT, "-Wno-unused-function", *(f"-I{folder}" for folder in folders)]
    run([compiler(), *options, "-c", tmp_path / "bundle.c", "-o", tmp_path / "bundle.o"])
