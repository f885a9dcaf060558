"""load: kernels of a bundle in Python, and what is refused before its library is opened."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import compiler, example, run
from tests.deploy.conftest import Built
from tests.support.cases.case import assert_same
from tvmconvgrad.bundles import load as load_module
from tvmconvgrad.bundles.manifest import sealed

ROOT = Path(cg.__file__).parents[1]


def test_every_kernel_equals_the_reference(built: Built) -> None:
    bundle = cg.load(built.folder)
    assert list(bundle) == list(built.gradients)
    assert len(bundle) == len(built.gradients)
    for name, kernel in bundle.items():
        assert isinstance(kernel, cg.Kernel)
        first, second, wanted = example(built.gradients[name])
        assert_same(kernel(first, second), wanted)
        assert kernel.problem == built.gradients[name].problem
        assert str(kernel.target) in str(kernel)


def test_threads_follow_set_num_threads(built: Built) -> None:
    bundle = cg.load(str(built.folder))
    first, second, wanted = example(built.gradients["wide_f32_filters"])
    for count in (1, 4, 2):
        cg.set_num_threads(count)
        assert_same(bundle["wide_f32_filters"](first, second), wanted)
        other = cg.load(built.folder)  # also of a library that is opened later
        assert_same(other["wide_f32_filters"](first, second), wanted)


def test_find_goes_by_the_problem_whatever_its_names(built: Built) -> None:
    bundle = cg.load(built.folder)
    op = cg.ConvolutionBackwardWeights(strides=(1,), dilations=(1,), auto_pad="valid", weights_shape=(1, 32, 48))
    problem = op.problem((1, 98, 32), (1, 98, 48))  # the same sum: 2 x 7 x 7 positions, however they are counted
    kernel = bundle.find(problem)
    assert kernel is not None
    assert kernel.problem.input_names == ("src", "diff_dst")
    first, second, wanted = example(built.gradients["pointwise_f32_filters"])
    assert_same(kernel(first.reshape(1, 98, 32), second.reshape(1, 98, 48)), wanted.reshape(1, 32, 48))
    assert bundle.find(op.problem((1, 97, 32), (1, 97, 48))) is None
    with pytest.raises(ValueError, match="src: shape"):
        kernel(second, first)


def test_unknown_names(built: Built) -> None:
    with pytest.raises(KeyError, match="nonsense"):
        cg.load(built.folder)["nonsense"]


@pytest.fixture
def copy(built: Built, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(built.folder, folder)
    return folder


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The words of the error, which must come before the library is opened."""

    def opened(*_: object) -> None:
        raise AssertionError("the library was opened")

    monkeypatch.setattr(load_module, "load_bundle", opened)
    with pytest.raises(cg.BundleError) as error:
        cg.load(folder)
    assert str(error.value).startswith(str(folder))
    return str(error.value)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object], *, seal: bool = True) -> None:
    """Change a manifest, and its digest of itself."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    old = content.pop("sha256")
    change(content)
    path.write_text(json.dumps({"sha256": sealed(content) if seal else old, **content}))


def test_a_changed_byte(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy / "libsmall.so"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "libsmall.so has changed: its SHA-256" in refused(copy, monkeypatch)


@pytest.mark.parametrize("name", ["small.h", "libsmall.a", "libsmall.so", "small.pc", "smallConfig.cmake"])
def test_a_longer_or_missing_file(name: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (copy / name).open("ab") as file:
        file.write(b"\n")
    assert f"{name} has changed: it has " in refused(copy, monkeypatch)
    (copy / name).unlink()
    assert f"{name} is missing" in refused(copy, monkeypatch)
    (copy / name).symlink_to("/etc/passwd")
    assert f"{name} is a symbolic link" in refused(copy, monkeypatch)
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert f"{name} is no regular file" in refused(copy, monkeypatch)


def test_the_example_is_the_users(copy: Path) -> None:
    (copy / "example.c").write_text("changed")
    assert len(cg.load(copy))


def test_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "manifest.json: is missing" in refused(tmp_path, monkeypatch)
    assert "there is no folder" in refused(tmp_path / "none", monkeypatch)
    (tmp_path / "manifest.json").symlink_to(tmp_path / "other")
    assert "is a symbolic link" in refused(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is no JSON"),
        (b"\x00\xff\xfe", "is no JSON"),
        (b"[" * 100000, "is no JSON"),
        (b"[]", "holds [], expected an object"),
        (b"{}", "format: got None, expected 5"),
        (b'{"format": 1}', "format: got 1, expected 5: another version"),
        (b'{"format": true}', "format: got True"),
        (b'{"format": 5}', "sha256: missing"),
        (b'{"format": 5, "sha256": "0"}', "sha256: '0' is no SHA-256"),
        (b'{"format": 5, "sha256": "%b"}' % (b"0" * 64), "name: missing"),
    ],
)
def test_no_manifest(text: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    assert words in refused(tmp_path, monkeypatch)


DIGEST = {"bytes": 1, "sha256": "0" * 64}


def kernel(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda content: change(content["kernels"][0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(architecture="sparc"), "it is for sparc with linux, and this machine is"),
        (lambda c: c.update(system="windows"), "with windows, and this machine is"),
        (lambda c: c.update(more=1), "'more': unknown, expected name"),
        (lambda c: c.pop("files"), "files: missing"),
        (lambda c: c.update(name="a b"), "name: 'a b' is no identifier"),
        (lambda c: c.update(name=["a"]), "name: got ['a'] of type list, expected a string"),
        (lambda c: c.update(library="../libsmall.so"), "library: '../libsmall.so' is no plain name"),
        (lambda c: c.update(library="/lib/libsmall.so"), "library: '/lib/libsmall.so' is no plain name"),
        (lambda c: c.update(library=".."), "library: '..' is no plain name"),
        (lambda c: c.update(library="libother.so"), "library: 'libother.so' is not among its files"),
        (lambda c: c["files"].update({"../x.so": DIGEST}), "'../x.so' is no plain name of a file"),
        (lambda c: c["files"].update({"a\nb": DIGEST}), "is no plain name of a file"),
        (lambda c: c["files"].update({"a": {**DIGEST, "sha256": "0"}}), "files.'a'.sha256: '0' is no SHA-256"),
        (lambda c: c["files"].update({"a": {**DIGEST, "bytes": -1}}), "files.'a'.bytes: -1 is not from 0"),
        (lambda c: c["files"].update({"a": {**DIGEST, "bytes": 1.5}}), "files.'a'.bytes: got 1.5 of type float"),
        (lambda c: c["files"].update({"a": []}), "files.'a': got [] of type list, expected an object"),
        (lambda c: c.update(targets=[]), "targets: is empty"),
        (lambda c: c["targets"][0].update(requires=["warp drive"]), "codes: expected one for each"),
        (lambda c: [t.update(requires=["warp"]) for t in c["targets"]], "needs warp, which this CPU does not have"),
        (lambda c: c["targets"][0].update(target="rocm"), "target: kind 'rocm' in 'rocm' is not supported"),
        (kernel(lambda k: k.update(operator="Operator")), "kernels[0] (dense_3x3_f32_filters): "),
        (kernel(lambda k: k.update(operator="parse_dtype")), "operator 'parse_dtype' is unknown"),
        (kernel(lambda k: k.update(dtype="f64")), "dtype: 'f64' is not supported"),
        (kernel(lambda k: k["attributes"].update(strides=[0, 1])), "strides: got 0 in (0, 1), expected a positive"),
        (kernel(lambda k: k["attributes"].update(strides={})), "attributes.strides: got {}, expected a string"),
        (kernel(lambda k: k["attributes"].update(magic=1)), "(dense_3x3_f32_filters): "),
        (kernel(lambda k: k["shapes"].update(input_forward=[2, 9, 8, 18])), "input_forward"),
        (kernel(lambda k: k["shapes"].update(more=[1])), "shapes of input_forward, output_delta, filter_delta, more"),
        (kernel(lambda k: k.update(codes=[])), "codes: expected one for each of the targets"),
        (kernel(lambda k: k.update(function="a;b")), "function: 'a;b' is no identifier"),
        (lambda c: c["kernels"].append(c["kernels"][0]), "name: there is another kernel of this name"),
    ],
)  # fmt: skip
def test_wrong_manifests(
    change: Callable[[dict[str, Any]], object], words: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words.startswith("codes"):  # a target that this CPU lacks is no error as long as there is another one
        change = lambda c: c["targets"].reverse()  # noqa: E731
    rewrite(copy, change)
    assert words in refused(copy, monkeypatch)


def _functions_swapped(content: dict[str, Any]) -> None:
    one, other = content["kernels"][:2]
    one["function"], other["function"] = other["function"], one["function"]


def _another_type(content: dict[str, Any]) -> None:
    content["kernels"][0]["dtype"] = "f16"


@pytest.mark.parametrize("change", [_functions_swapped, _another_type, lambda c: c.update(name="other")])
def test_what_fits_together_and_was_not_built(
    change: Callable[[dict[str, Any]], object], copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another kernel's function, or of other shapes than it is compiled for, a call would write anywhere."""
    rewrite(copy, change, seal=False)
    assert "manifest.json: has changed: its SHA-256" in refused(copy, monkeypatch)


@pytest.mark.parametrize("name", ["manifest.json", "libsmall.so"])
def test_what_is_no_file_costs_no_descriptor(name: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / name).unlink()
    (copy / name).mkdir()
    open_files = len(os.listdir("/proc/self/fd"))
    assert f"{name}" in refused(copy, monkeypatch)
    assert "is no regular file" in refused(copy, monkeypatch)
    assert len(os.listdir("/proc/self/fd")) == open_files
    (copy / name).rmdir()
    (copy / name).touch()
    os.truncate(copy / name, 1 << 40)  # more than there is memory
    assert re.search(r"has 1099511627776 bytes|has changed: it has 1099511627776", refused(copy, monkeypatch))


@pytest.mark.parametrize("folder", [3, None, b"bundle", ["bundle"], 1.5, np.zeros(2), object])
def test_what_is_no_path(folder: Any) -> None:
    with pytest.raises(TypeError, match=r"^folder: got .* expected a path$"):
        cg.load(folder)
    with pytest.raises(TypeError, match=r"^bundle: got .* expected a path$"):
        cg.use(folder)


@pytest.mark.parametrize("folder", ["a\0b", "\ud800"])
def test_what_no_path_can_be(folder: str) -> None:
    with pytest.raises(ValueError, match=r"^folder: got .* which cannot be a path$"):
        cg.load(folder)


def test_another_library_with_the_right_hash(copy: Path) -> None:
    run([compiler(), "-shared", "-x", "c", "/dev/null", "-o", copy / "libsmall.so"])
    content = (copy / "libsmall.so").read_bytes()
    file = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(copy, lambda c: c["files"].update({"libsmall.so": file}))
    with pytest.raises(cg.BundleError, match=r"libsmall\.so is not the manifest's"):
        cg.load(copy)


LIGHT = """
import sys
import numpy as np
import tvmconvgrad as cg
bundle = cg.use(sys.argv[1])
kernel = bundle["dense_3x3_f32_filters"]
first, second = (np.ones(shape, np.float32) for shape in kernel.problem.input_shapes)
result = kernel(first, second)
op = cg.ConvolutionBackpropFilters(
    strides=(1, 1), dilations=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), filter_shape=(3, 3, 17, 25)
)
assert (op(first, second) == result).all() and (op(input_forward=first, output_delta=second) == result).all()
assert result[1, 1].min() == result[1, 1].max() == 2 * 9 * 8
try:
    op.compile((3, 9, 8, 17), (3, 9, 8, 25))
except cg.MissingKernel as error:
    assert "apache-tvm is not installed" in str(error), error
    print("right")
"""


def test_it_takes_numpy_and_nothing_else(built: Built, tmp_path: Path) -> None:
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (tmp_path / name).symlink_to(site / name)
    (tmp_path / "tvmconvgrad").symlink_to(ROOT / "tvmconvgrad")
    words = [sys.executable, "-S", "-c", LIGHT, built.folder]  # -S: without this environment's packages
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_no_memory_is_a_memory_error(built: Built) -> None:
    code = """
import resource, sys
import numpy as np
import tvmconvgrad as cg
bundle = cg.load(sys.argv[1])
cg.set_num_threads(4096)
kernel = bundle["wide_bf16_filters"] if len(sys.argv) > 2 else bundle["wide_f32_filters"]
first, second = (np.ones(shape, np.float32) for shape in kernel.problem.input_shapes)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 18), resource.RLIM_INFINITY))
try:
    kernel(first, second, np.empty(kernel.problem.output_shape, np.float32))
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, built.folder], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "no memory for the workspace of the kernel\n", done.stderr
