"""From the code of a kernel to a shared library, by the linker of the C compiler.

What is linked to each kernel (library.c) is compiled once in a process. To link a kernel, the C compiler itself takes
three processes and reads libraries of which nothing is used. So it is asked once how it would, and its linker is then
run directly, in half of the time. Where that fails, as with files for link-time optimisation, the C compiler links.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tvmconvgrad import csrc
from tvmconvgrad.common import programs
from tvmconvgrad.common.errors import MissingLinker
from tvmconvgrad.compiler import c_tools
from tvmconvgrad.files.temporary import temporary_folder
from tvmconvgrad.machines.host import host_architecture
from tvmconvgrad.machines.triples import linux_triple

_C = ctypes.CDLL(None)
_LIBRARY = csrc.FOLDER / "library.c"
# Hidden: a symbol of the same name elsewhere in the process (TVM's own runtime) must not take its place.
_C_OPTIONS = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
_LINK_OPTIONS = ("-shared", "-fPIC", "-pthread")
_KERNEL, _REST, _LINKED = _FILES = "kernel.o", "library.o", "kernel.so"
_NEEDED = ("-lc", "-lpthread")
_ALL_DEFINED = ("-z", "defs")
"""An option of linkers: to fail where another library is needed, too."""
_MACHINE = slice(18, 20)  # e_machine in ELF's header
_MACHINES = {"x86_64": 62, "aarch64": 183}


def link(code: bytes, architecture: str) -> bytes:
    """The shared library of an object file with a kernel. MissingLinker, TemporaryFolderError."""
    compiler = find_compiler(architecture)
    options = tuple(c_tools.options_for(architecture, "CFLAGS", "LDFLAGS"))
    with temporary_folder() as folder:
        Path(folder, _KERNEL).write_bytes(code)
        Path(folder, _REST).write_bytes(_library(compiler, architecture))
        linker = _linker(compiler, options)
        if linker is None or _failure(_within(folder, linker), folder):
            _run(_within(folder, _command(compiler, options)), architecture, folder)
        return Path(folder, _LINKED).read_bytes()


def compile_library(source: Path, include: Path) -> bytes:
    """The shared library of a C file for this machine, which includes files of a folder. MissingLinker."""
    architecture = host_architecture()
    with temporary_folder() as folder:
        path = folder / _LINKED
        words = [*c_tools.words(find_compiler(architecture)), *_C_OPTIONS, "-shared", f"-I{include}", str(source)]
        _run([*words, "-o", str(path)], architecture, folder)
        return path.read_bytes()


def find_compiler(architecture: str) -> str:
    """The command of the C compiler (c_tools.py). MissingLinker where there is none."""
    found = c_tools.find_compiler(architecture)
    if found is None:
        raise MissingLinker(advice(architecture))
    return found


def check_compiler(architecture: str) -> None:
    """Raise MissingLinker unless the C compiler compiles for an architecture."""
    compiler = find_compiler(architecture)
    # as x86-64 and AArch64 write numbers
    machine = int.from_bytes(_library(compiler, architecture)[_MACHINE], "little")
    if machine != _MACHINES.get(architecture, machine):
        theirs = next((name for name, number in _MACHINES.items() if number == machine), "another architecture")
        raise MissingLinker(f"{advice(architecture)}; {compiler} failed: it compiles for {theirs}")


def advice(architecture: str) -> str:
    """What to install where no C compiler was found."""
    usual, what = "gcc or clang", "a C compiler"
    if architecture != host_architecture():
        package = f"gcc-{linux_triple(architecture).replace('_', '-')}"
        usual, what = f"{c_tools.cross_compiler(architecture)} (Debian's {package})", f"a C compiler for {architecture}"
    return f"a kernel is linked by {what} and none was found that works: install {usual}, or name it in CXX"


@functools.cache
def _library(compiler: str, architecture: str) -> bytes:
    """The object file of library.c, compiled once in a process."""
    with temporary_folder() as folder:
        path = folder / _REST
        options = c_tools.options_for(architecture, "CFLAGS")
        command = [*c_tools.words(compiler), *_C_OPTIONS, *options, "-c", str(_LIBRARY), "-o", str(path)]
        _run(command, architecture, folder)
        return path.read_bytes()


def _command(compiler: str, options: Sequence[str]) -> list[str]:
    return [*c_tools.words(compiler), *_LINK_OPTIONS, "-o", _LINKED, _KERNEL, _REST, *options]


def _within(folder: Path, command: Sequence[str]) -> list[str]:
    """A command with the files of a folder. The rest of it may name others by their place from here."""
    return [str(folder / word) if word in _FILES else word for word in command]


@functools.cache
def _linker(compiler: str, options: tuple[str, ...]) -> list[str] | None:
    """The command of the C compiler's linker, as gcc and clang tell it, with no library but C's own, and without the
    plugin for link-time optimisation; None where they don't tell it."""
    with temporary_folder() as folder:
        for name in (_KERNEL, _REST):
            Path(folder, name).touch()  # gcc looks whether they are there
        command = _within(folder, [*_command(compiler, options), "-###"])
        try:
            told = programs.run(command, start_new_session=True).stderr
            (line,) = (line for line in told.splitlines() if line.startswith(" ") and str(folder / _KERNEL) in line)
            program, *words = (word.removeprefix(f"{folder}/") for word in shlex.split(line))
            if Path(program).name == "collect2":  # which would call the linker
                command = [*c_tools.words(compiler), "-print-prog-name=ld"]
                program = programs.run(command).stdout.strip()
        except (OSError, subprocess.CalledProcessError, ValueError):
            return None
    plugins = [place for place, word in enumerate(words) if word == "-plugin"]
    own = (word for place, word in enumerate(words) if place - 1 not in plugins and not word.startswith("-plugin"))
    return [program, *_ALL_DEFINED, *(word for word in own if word[:2] != "-l" or word in _NEEDED)]


def _run(command: Sequence[str], architecture: str, folder: Path) -> None:
    """Run a C compiler. MissingLinker where it fails."""
    said = _failure(command, folder)
    if said:
        raise MissingLinker(f"{advice(architecture)}; {command[0]} {said}")


def _failure(command: Sequence[str], folder: Path) -> str:
    """Run a tool that has its own files in a folder, too; "" or how it failed. Ctrl-C does not reach it."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    try:
        with _new_processes_here():
            tool = programs.start_quietly(command, env=environment, start_new_session=True)
    except OSError as reason:
        return f"cannot be run: {reason}"
    done = programs.finish(tool)
    return f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}" if done.returncode else ""


@contextmanager
def _new_processes_here() -> Iterator[None]:
    """A block that starts processes on the CPU of this thread, which is to sleep until they end.

    Linux puts a new process on the CPU that has the fewest. That may be the one of a thread that computes alone, while
    the workers share another one: with 60 kernels in ten seconds it lost 2 % of its time to linkers.
    """
    if not hasattr(_C, "sched_getcpu") or not hasattr(os, "sched_setaffinity"):
        yield
        return
    usual = os.sched_getaffinity(0)
    here = _C.sched_getcpu()
    with suppress(OSError):
        os.sched_setaffinity(0, {here})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, usual)
