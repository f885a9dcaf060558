"""What is misspelt, missing or of the wrong kind is told in words that lead on."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconvgrad as cg
from tvmconvgrad.cli.common.options import OPERATORS
from tvmconvgrad.layers import SUITES
from tvmconvgrad.spec.attributes import AUTO_PADS

Fails = Callable[..., str]
SHAPES = ("--shapes", "1,5,3", "1,3,4", "--filter-shape", "3,3,4")
ONE = ("run", "ConvolutionBackpropFilters", *SHAPES, "--auto-pad", "valid")


def misspelt(word: str, rng: random.Random) -> str:
    """A word with a letter missing, doubled, or in the other case."""
    place = rng.randrange(1, len(word))
    letter = rng.choice(["", word[place] * 2, word[place].swapcase()])
    found = word[:place] + letter + word[place + 1 :]
    return found if found != word else word + word[-1]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (OPERATORS, lambda word: ("run", word, *SHAPES)),
        (OPERATORS, lambda word: ("inspect", word, *SHAPES)),
        (list(SUITES), lambda word: ("bench", word)),
        (list(SUITES), lambda word: ("build", word, "-o", "bundle")),
        (["NXC", "NCX"], lambda word: ("bench", "stem", "--data-format", word)),
        (["onednn", "torch", "none"], lambda word: ("bench", "stem", "--peers", word)),
        (["untuned", "direct", "auto"], lambda word: ("bench", "stem", "--peers", "none", "--ours-too", word)),
        ([word for word in AUTO_PADS if word != "none"], lambda word: (*ONE, "--auto-pad", word)),
        (["filters", "data"], lambda word: ("build", "stem", "-o", "bundle", "--only", word)),
        (["mcpu", "mattr", "mtriple"], lambda word: (*ONE, "--target", f"llvm -{word}=native")),
        (["direct", "auto"], lambda word: (*ONE, "--target", f"llvm -algorithm={word}")),
    ],
)
def test_did_you_mean(words: list[str], command: Any, fails: Fails) -> None:
    rng = random.Random(repr(words))
    for word in words:
        wrong = misspelt(word, rng)
        if wrong.lower() == word.lower() and word in AUTO_PADS:
            continue  # whose letter case does not matter
        told = fails(*command(wrong))
        meant = re.search(r"did you mean '(\w+)'", told)
        assert meant is not None, (wrong, told)
        assert meant[1] == word or len(words) > 3, (wrong, told)


def test_a_misspelt_option_and_a_misspelt_verb(fails: Fails) -> None:
    assert "'tune'" in fails("tunne")
    assert "'list'" in fails("cache", "lst")
    assert "--shapes" in fails(*ONE[:2], "--shapess", "1")


def test_misspelt_names_in_python() -> None:
    op = cg.ConvolutionBackpropData(strides=(1,), dilations=(1,), auto_pad="valid")
    with pytest.raises(TypeError, match=r"no input 'fliter' \(did you mean 'filter'\?\)"):
        op(np.ones((1, 3, 4)), fliter=np.ones((3, 3, 4)))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'dilation' \(did you mean 'dilations'\?\)"):
        cg.ConvolutionBackpropData(strides=(1,), dilations=(1,), dilation=(1,))  # type: ignore[arg-type]


def test_a_misspelt_value_of_the_environment(fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMCONVGRAD_BUILD", "nver")
    assert "'nver' (did you mean 'never'?), expected never or allowed" in fails(*ONE, "--repeat", 1, "--seed", 7)


@pytest.mark.parametrize(("mcpu", "meant"), [("zen5", "znver5"), ("sapphirerapid", "sapphirerapids")])
def test_a_cpu_that_llvm_does_not_know(mcpu: str, meant: str, fails: Fails, invoke: Any) -> None:
    told = fails("inspect", *ONE[1:], "--target", f"llvm -mcpu={mcpu} -mtriple=x86_64-linux-gnu")
    assert f"'{meant}'" in told
    assert "`tvmconvgrad info --cpus` lists its names" in told
    listed = invoke("info", "--cpus").output.splitlines()
    assert f"x86_64  {meant}" in listed
    assert "aarch64  neoverse-n1" in listed


def test_files_that_are_no_inputs(fails: Fails, tmp_path: Path) -> None:
    names = ("f64", "i32", "junk", "objects", "several", "cut", "f32")
    paths = {name: tmp_path / f"{name}.npy" for name in names}
    np.save(paths["f32"], np.zeros((1, 3, 4), np.float32))
    np.save(paths["f64"], np.zeros((1, 5, 3)))
    np.save(paths["i32"], np.zeros((1, 5, 3), np.int32))
    np.save(paths["objects"], np.array([{}], dtype=object), allow_pickle=True)
    paths["junk"].write_text("hello")
    with paths["several"].open("wb") as file:
        np.savez(file, a=np.zeros(1))
    paths["cut"].write_bytes(paths["f64"].read_bytes()[:-5])
    told = {
        "f64": "float64 is not supported, expected f32, f16 or bf16",
        "i32": "int32 is not supported, expected f32, f16 or bf16",
        "junk": "is no .npy file",
        "objects": "holds Python objects",
        "several": "is no .npy file",
        "cut": "is damaged",
    }
    for name, words in told.items():
        for pair in ((name, "f32"), ("f32", name), (name, name)):
            message = fails(*ONE[:2], "--auto-pad", "valid", *ONE[5:7], *(paths[each] for each in pair))
            assert message.startswith(f"{paths[name]}: {words}")
            assert "pickle" not in message


@pytest.mark.parametrize("name", ["strides", "dilations", "pads_begin", "pads_end", "output_padding"])
def test_an_int_is_no_list(name: str) -> None:
    good = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0)}
    with pytest.raises(TypeError, match=rf"{name}: got 2, expected one int per spatial axis, .* {name}=\(2, 2\)"):
        cg.ConvolutionBackpropData(**{**good, name: 2})  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", OPERATORS)
def test_signatures_require_what_is_required(operator: str) -> None:
    import inspect

    parameters = inspect.signature(getattr(cg, operator)).parameters
    required = {name for name, each in parameters.items() if each.default is each.empty} - {"unknown"}
    assert required == {"strides", "dilations"}
    with pytest.raises(TypeError, match="strides"):
        getattr(cg, operator)(dilations=(1,))
