"""build and its command: what is refused, names that are no C, and folders that are complete or not there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import tvmconvgrad as cg
from tests.deploy.bundles import STRICT, compiler, example, run
from tests.deploy.conftest import Built
from tests.support.cases.case import assert_same
from tvmconvgrad.deploy import names
from tvmconvgrad.layers import Layer, write_layers

TINY = {"batch": 1, "channels": 2, "filters": 3, "input_size": (4,), "kernel": (1,)}
LAYER = Layer(name="tiny", **TINY)  # type: ignore[arg-type]
EVIL = [
    "*/ int main(void) { return 1; } /*",
    '"; system("true"); "',
    "\\",
    "??/",
    "#define x",
    "字 😀",
    "int",
    "1x1",
    "a" * 500,
    "Conv",
    "conv",
    "${x}",
    "{{ name }}",
    "{% raw %}",
    "get_kernel",
    "a_filters",
    "__tvm_ffi_main",
    "%n%s",
]


def test_names_of_layers_never_reach_the_code(tmp_path: Path) -> None:
    layers = [Layer(name=name, **TINY) for name in EVIL]  # type: ignore[arg-type]
    folder = cg.build(layers, tmp_path / "evil", name="evil", only="filters")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [kernel["layer"] for kernel in manifest["kernels"]] == EVIL
    functions = [kernel["function"] for kernel in manifest["kernels"]]
    assert len({function.upper() for function in functions}) == len(EVIL)
    assert all(re.fullmatch(r"evil_[a-z][a-z0-9_]*_filters(_\d+)?", function) for function in functions)
    for cc in ("gcc", "g++"):
        options = [*STRICT, "-trigraphs", "-Wtrigraphs", f"-I{folder}", f"-L{folder}", f"-Wl,-rpath,{folder}"]
        run([compiler(cc), *options, folder / "example.c", "-levil", "-o", tmp_path / "example"])
        assert run([tmp_path / "example"]).startswith("evil_int_main_void_return_1_filters for ")
    assert list(cg.load(folder)) == [kernel["name"] for kernel in manifest["kernels"]]


@pytest.mark.parametrize(
    "name", ["a b", "A", "1a", "", "string", "c", "int", "class", "../a", "a" * 81, "é", "_a", "a\n"]
)
def test_names_of_bundles_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name: "):
        cg.build([LAYER], tmp_path / "bundle", name=name)
    assert not (tmp_path / "bundle").exists()


def test_names_of_files_become_names_of_bundles() -> None:
    assert [names.bundle_name(text) for text in ("string", "My layers-2", "7", "*", "layers")] == [
        "string_kernels", "my_layers_2", "kernels_7", "kernels", "layers",
    ]  # fmt: skip
    for text in names.TAKEN:
        assert names.check_bundle_name(names.bundle_name(text))


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"targets": []}, ValueError, "targets: is empty"),
        ({"targets": ["llvm", "llvm"]}, ValueError, "targets: 'llvm' is there twice"),
        ({"targets": ["llvm", "llvm -algorithm=auto"]}, ValueError, "are for one processor, expected one"),
        ({"targets": ["cuda -arch=sm_90 -fpmath_mode=tf32", "cuda -arch=sm_90"]}, ValueError, "are for one processor"),
        ({"targets": ["llvm -mcpu=cortex-a76", "llvm -mcpu=x86-64-v3"]}, ValueError, "of different architectures"),
        ({"targets": "llvm -mtriple=x86_64-apple-darwin"}, ValueError, "is for darwin, expected Linux"),
        ({"targets": "llvm -mcpu=nonsense"}, ValueError, "mcpu 'nonsense'"),
        ({"targets": "cuda -arch=90"}, ValueError, "target: arch is '90'"),
        ({"targets": ["llvm", "cuda -arch=sm_90"]}, ValueError, "of different architectures"),
        ({"targets": "cuda -arch=sm_90", "static": True}, ValueError, "static: a bundle for GPUs has no library"),
        ({"dtypes": ["f64"]}, ValueError, "f64"),
        ({"data_format": "NHWC"}, ValueError, "data_format: got 'NHWC'"),
        ({"filter_format": "HWIO"}, ValueError, "HWIO"),
        ({"substring": "none"}, ValueError, "layer: no layer of tiny has 'none' in its name"),
        ({"name": 5}, TypeError, "name: got 5 of type int"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as error:
        cg.build([LAYER], tmp_path / "bundle", **options)
    assert words in str(error.value)
    assert not list(tmp_path.iterdir())


def test_folders_that_are_no_bundle_stay(tmp_path: Path) -> None:
    full, file, link = (tmp_path / name for name in ("full", "file", "link"))
    full.mkdir()
    (full / "precious").touch()
    file.touch()
    link.symlink_to(full)
    for path in (full, file, link):
        with pytest.raises(ValueError, match="expected a new name or a bundle to replace"):
            cg.build([LAYER], path, name="tiny")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link"]
    assert [path.name for path in full.iterdir()] == ["precious"]


def test_a_bundle_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deep" / "bundle"
    cg.build([LAYER], folder, name="one")
    (tmp_path / "usual").mkdir()
    assert os.stat(folder).st_mode == os.stat(tmp_path / "usual").st_mode
    with pytest.raises(RuntimeError, match="stop"):
        cg.build([LAYER], folder, name="two", progress=_stop)
    assert cg.load(folder).manifest.name == "one"
    cg.build([LAYER], folder, name="two")
    assert cg.load(folder).manifest.name == "two"
    assert not (folder / "libone.so").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["bundle"]
    (folder / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"holds 'notes\.txt', which is not of its bundle"):
        cg.build([LAYER], folder, name="three")
    assert cg.load(folder).manifest.name == "two"
    (folder / "manifest.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match=r"manifest\.json format: got 0, expected 5.*; remove the folder"):
        cg.build([LAYER], folder, name="three")
    assert (folder / "libtwo.so").exists()


def _stop(what: str, done: int, total: int) -> None:
    if what == "linking":
        raise RuntimeError("stop")


def test_the_same_layers_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = (cg.build([LAYER], tmp_path / name, name="tiny", static=True) for name in ("one", "two"))
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in two.iterdir()
    }


def test_the_manifest_tells_all(built: Built) -> None:
    manifest = json.loads((built.folder / "manifest.json").read_text())
    assert manifest["format"] == 5
    assert manifest["versions"]["tvmconvgrad"] == cg.__version__
    first = manifest["kernels"][0]
    assert first["operator"] == "ConvolutionBackpropFilters"
    assert first["attributes"]["pads_begin"] == [1, 1]
    assert first["shapes"] == {
        "input_forward": [2, 9, 8, 17],
        "output_delta": [2, 9, 8, 25],
        "filter_delta": [3, 3, 17, 25],
    }
    assert first["dtype"] == "f32"
    assert [code["target"] for code in first["codes"]] == [entry["target"] for entry in manifest["targets"]]
    assert all(code["schedule"] and len(code["sha256"]) == 64 for code in first["codes"])
    assert {code["provenance"] for code in first["codes"]} == {"default"}


def test_the_command(invoke: Any, tmp_path: Path) -> None:
    write_layers(tmp_path / "my layers.json", [LAYER])
    words = [
        "build",
        tmp_path / "my layers.json",
        "--dtype",
        "bf16",
        "--data-format",
        "NCX",
        "--static",
        "--only",
        "data",
    ]
    result = invoke(*words, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "libmy_layers.a" in result.stdout
    (kernel,) = cg.load(tmp_path / "out").values()
    assert (kernel.name, kernel.problem.dtype, kernel.problem.data_format) == ("ConvolutionBackpropData", "bf16", "NCX")
    first, second, wanted = example(LAYER.gradients("NCX", dtype="bf16")[1])
    assert_same(kernel(first, second), wanted)


def test_each_layer_in_its_own_type(invoke: Any, tmp_path: Path) -> None:
    layers = [LAYER, Layer(name="half", dtype="bf16", **TINY)]  # type: ignore[arg-type]
    write_layers(tmp_path / "mixed.toml", layers)
    result = invoke("build", tmp_path / "mixed.toml", "--only", "filters", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    bundle = cg.load(tmp_path / "out")
    assert {name: kernel.problem.dtype for name, kernel in bundle.items()} == {
        "tiny_filters": "f32",
        "half_filters": "bf16",
    }
    for layer in layers:
        first, second, wanted = example(layer.gradients()[0])
        assert_same(bundle[f"{layer.name}_filters"](first, second), wanted)


def test_the_commands_errors(fails: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fails("build", tmp_path / "none.json", "-o", out).endswith("cannot be read: No such file or directory")
    assert "suite: 'resnet' is unknown" in fails("build", "resnet", "-o", out)
    assert "mcpu 'nonsense'" in fails("build", "stem", "--target", "llvm -mcpu=nonsense", "-o", out)
    assert "name: 'A'" in fails("build", "stem", "--name", "A", "-o", out)
    (tmp_path / "file").touch()
    write_layers(tmp_path / "a.json", [LAYER])
    assert "cannot be written" in fails("build", tmp_path / "a.json", "-o", tmp_path / "file" / "out")


def test_no_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconvgrad.common.errors import MissingLinker

    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(MissingLinker, match="cannot be run"):
        cg.build([LAYER], tmp_path / "bundle", name="tiny")
    assert not list(tmp_path.iterdir())
