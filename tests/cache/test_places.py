"""Folders: those that cannot be known, have odd names, are full, read-only, noexec, or vanish meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cache import places_worker
from tests.cache.cache_support import DESCRIPTION, LIBRARY, build
from tests.cache.cache_worker import description, library
from tests.runtime.layers import program
from tvmconvgrad.cache import folder as folders
from tvmconvgrad.cache.folder import CacheFolderError, UnknownFolder, publish, remove_stale
from tvmconvgrad.cache.store import CacheWarning, KernelCache
from tvmconvgrad.files.temporary import TemporaryFolderError, temporary_folder
from tvmconvgrad.records import logs

# A user of a container: no entry in the password file.
NOBODY = """
import pwd
def no_entry(number):
    raise KeyError(number)
pwd.getpwuid = no_entry
for name in [name for name in os.environ if name.startswith("XDG_") or name in ("HOME", "TVMCONVGRAD_TUNING_DIR")]:
    del os.environ[name]
"""


@pytest.mark.parametrize(
    "home", ["", "os.environ['HOME'] = ''", "os.environ['HOME'] = 'relative'", "os.environ['HOME'] = '/'"]
)
def test_a_home_that_is_none(home: str, tmp_path: Path) -> None:
    # the prelude's kernels are in the cache that the variable names
    code = """
from tvmconvgrad.operators import compiled
from tvmconvgrad.common import process
process.forget()
kernel = compiled.get_kernel(kernel.problem)
assert right()
del os.environ["TVMCONVGRAD_CACHE_DIR"]
from tvmconvgrad.cache.folder import default_folder
try:
    print(default_folder())
except cg.CacheFolderError as error:
    print(error)
"""
    said = program(NOBODY + home + code)
    if home.endswith("'/'"):
        assert said == "/.cache/tvmconvgrad"
    else:
        assert said.startswith("TVMCONVGRAD_CACHE_DIR is not set, and the user's own folder cannot be known")
        assert said.endswith("name a folder in TVMCONVGRAD_CACHE_DIR")


@pytest.mark.parametrize("variable", ["TVMCONVGRAD_CACHE_DIR", "TVMCONVGRAD_TUNING_DIR"])
def test_a_variable_that_names_no_folder(variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = {"TVMCONVGRAD_CACHE_DIR": folders.default_folder, "TVMCONVGRAD_TUNING_DIR": logs.user_folder}[variable]
    monkeypatch.setenv(variable, "~nobody-of-this-name/kernels")
    with pytest.raises(UnknownFolder, match=rf"{variable}: '~nobody-of-this-name/kernels' names no folder"):
        find()
    monkeypatch.setenv(variable, "kernels")
    assert find() == Path.cwd() / "kernels"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UnknownFolder, match=rf"{variable}: 'kernels' names no folder"):
        find()
    assert issubclass(UnknownFolder, CacheFolderError)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("places")
    paths = os.pathsep.join(path or "." for path in sys.path)
    done = subprocess.run(
        [sys.executable, places_worker.__file__, str(root)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


RIGHT = {"answer": True, "warnings": []}


@pytest.mark.parametrize("name", ["missing", "noexec", "read-only temporary folder"])
def test_places_that_hinder_nothing(places: tuple[Path, dict[str, Any]], name: str) -> None:
    _, answers = places
    if name not in answers:
        pytest.skip("nothing can be mounted here")
    assert answers[name] == RIGHT


def test_odd_names(places: tuple[Path, dict[str, Any]]) -> None:
    _, answers = places
    assert answers["odd names"] == {**RIGHT, "kept": 1}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("long", "File name too long"),
        ("full cache", "No space left on device"),
        ("read-only cache", "Read-only file system"),
    ],
)
def test_a_cache_that_cannot_be_written_costs_one_warning(
    places: tuple[Path, dict[str, Any]], name: str, why: str
) -> None:
    _, answers = places
    if name not in answers:
        pytest.skip("nothing can be mounted here")
    assert answers[name]["answer"] is True
    said = answers[name]["warnings"]
    assert said
    assert said[-1].startswith("CacheWarning: built kernels cannot be kept in ")
    assert all(one.endswith(f": {why}") for one in said)


def test_a_full_temporary_folder_is_named_first(places: tuple[Path, dict[str, Any]]) -> None:
    root, answers = places
    if "full temporary folder" not in answers:
        pytest.skip("nothing can be mounted here")
    words = f"temporary folder {root}/full: No space left on device; name another one in TMPDIR"
    assert answers["full temporary folder"] == {"answer": f"TemporaryFolderError: {words}", "warnings": []}


def test_no_temporary_folder_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(TemporaryFolderError, match=rf"^temporary folder {tmp_path}/none: .*name another one in TMPDIR"):
        temporary_folder().__enter__()


def test_a_temporary_folder_that_vanishes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TemporaryFolderError, match="No such file or directory"), temporary_folder() as folder:
        shutil.rmtree(folder)
        raise ValueError("a tool's own words")
    with pytest.raises(ValueError, match="a tool's own words"), temporary_folder():
        raise ValueError("a tool's own words")


def test_the_cache_folder_is_removed_while_threads_build(cache: KernelCache) -> None:
    end = threading.Event()

    def remove() -> None:
        while not end.is_set():
            shutil.rmtree(cache.folder, ignore_errors=True)

    def get(number: int) -> bool:
        made = cache.load_or_build(description(number % 5), lambda: (library(number % 5), {}))
        cache.size(), cache.entries()
        return made.library == library(number % 5)

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(get, range(100), timeout=60))
    finally:
        end.set()
        remover.join()
    cache.store(DESCRIPTION, LIBRARY, {})
    assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY


# Clocks, and other versions


@pytest.mark.parametrize("hours", [-9e4, -1.1, -0.9, 0.9, 1.1, 9e4])
def test_unfinished_files_by_a_clock_that_has_jumped(tmp_path: Path, hours: float) -> None:
    left = tmp_path / "tmp-left"
    left.touch()
    os.utime(left, (left.stat().st_mtime + 3600 * hours,) * 2)
    remove_stale(tmp_path)
    assert left.exists() == (abs(hours) < 1)


@pytest.mark.parametrize("durable", [True, False])
def test_what_must_last_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    steps: list[str] = []
    for name in ("fsync", "replace"):
        step = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, step=step: steps.append(name) or step(*given))
    publish(tmp_path / "file", b"content", durable=durable)
    assert steps == (["fsync", "replace"] if durable else ["replace"])
    assert (tmp_path / "file").read_bytes() == b"content"


def test_an_unfinished_file_that_is_removed_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, removed = os.replace, []

    def remove(here: str, there: Path) -> None:
        if len(removed) < 2:
            removed.append(Path(here).unlink())
        rename(here, there)

    monkeypatch.setattr(os, "replace", remove)
    publish(tmp_path / "cache/file", b"content")
    assert (len(removed), (tmp_path / "cache/file").read_bytes()) == (2, b"content")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["file"]


def test_kernels_of_any_time_are_found(cache: KernelCache) -> None:
    cache.store(DESCRIPTION, LIBRARY, {})
    (path,) = cache.folder.glob("*.kernel")
    for seconds in (0, 2**33):
        os.utime(path, (seconds, seconds))
        assert len(cache.entries()) == 1
        assert cache.load_or_build(DESCRIPTION, lambda: pytest.fail("it is there")).library == LIBRARY


@pytest.mark.parametrize("version", [2, 3, 255])
def test_what_a_later_version_wrote_stays(cache: KernelCache, version: int) -> None:
    cache.store(DESCRIPTION, LIBRARY, {})
    (path,) = cache.folder.glob("*.kernel")
    head = b"cgkern\x00" + bytes([version]) + struct.pack(">3Q", 0, 3, 8)
    payload = b"whatever it"
    theirs = head + hashlib.sha256(head + payload).digest() + payload
    path.write_bytes(theirs)
    cache.store({"other": 1}, b"other", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(DESCRIPTION) is None
        assert [entry.description for entry in cache.entries()] == [{"other": 1}]
    with pytest.warns(CacheWarning, match="of a later version of tvmconvgrad, and stays"):
        assert cache.load_or_build(DESCRIPTION, build).library == LIBRARY
    assert path.read_bytes() == theirs
    assert not (cache.folder / "quarantine").exists()


def test_a_warning_is_said_once_and_shows_no_line_of_source(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tvmconvgrad.cache.store import KernelCache
Path({str(tmp_path)!r}, "file").touch()
for number in range(3):
    KernelCache(Path({str(tmp_path)!r}, "file/cache")).load_or_build({{"number": number}}, lambda: (b"", {{}}))
"""
    paths = os.pathsep.join(path or "." for path in sys.path)
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    why = f"built kernels cannot be kept in {tmp_path}/file/cache: Not a directory"
    assert done.stderr == f"<tvmconvgrad>:1: CacheWarning: {why}\n"
