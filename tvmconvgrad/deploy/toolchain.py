"""The C compiler and binutils, as far as a bundle needs them; for this machine or another architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvmconvgrad.common import programs
from tvmconvgrad.compiler import c_tools

_COMPILE = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror=implicit")
# No undefined symbol is left. Never unloaded: its threads run its code. Only what is needed is named as needed.
_SHARED = ("-shared", "-pthread", "-static-libgcc", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,--as-needed")


def _linking() -> list[str]:
    """As make links: with the compiler's options, too."""
    return [*c_tools.options("CFLAGS"), *c_tools.options("LDFLAGS")]


@dataclass(frozen=True)
class Toolchain:
    """A C compiler that gcc or clang is, and its binutils. `failure` makes the exception for a tool that fails.

    `compiler` is its command, also of several words. `options` go to it whenever it is called, and those that CFLAGS
    and LDFLAGS have (compiler/c_tools.py).
    """

    compiler: str
    failure: Callable[[str], Exception]
    options: tuple[str, ...] = ()

    def compile(self, source: Path, output: Path, folders: Iterable[Path]) -> None:
        """A C file to an object; headers are looked for in `folders`."""
        includes = [f"-I{folder}" for folder in folders]
        options = [*_COMPILE, *self.options, *c_tools.options("CFLAGS")]
        self._run([*self._command, *options, *includes, "-c", str(source), "-o", str(output)])

    def join(self, objects: Sequence[Path], output: Path) -> None:
        """Several objects to one, without what debuggers read."""
        options = ["-r", "-nostdlib", "-Wl,--strip-debug", *_linking()]
        self._run([*self._command, *options, "-o", str(output), *map(str, objects)])

    def hide_all_but(self, code: Path, public: Iterable[str]) -> None:
        """Make an object's symbols its own, so that those of another one do not take their place."""
        self._run([*self._tool("objcopy"), *(f"--keep-global-symbol={symbol}" for symbol in public), str(code)])

    def share(self, code: Path, output: Path) -> None:
        """An object to a shared library."""
        name = f"-Wl,-soname,{output.name}"
        self._run([*self._command, *_SHARED, *self.options, *_linking(), name, "-o", str(output), str(code), "-lm"])

    def archive(self, code: Path, output: Path) -> None:
        """An object to a static library; the same bytes for the same object."""
        self._run([*self._tool("ar"), "rcsD", str(output), str(code)])

    def check(self, static: bool) -> None:
        """Make a library of nothing, with all tools: what is missing fails here, not after minutes of compiling."""
        with tempfile.TemporaryDirectory(prefix="tvmconvgrad-") as folder:
            source, code, joined = (Path(folder, name) for name in ("a.c", "a.o", "all.o"))
            source.write_text("#include <pthread.h>\n#include <stdlib.h>\nint tvmconvgrad_nothing = 0;\n")
            self.compile(source, code, [])
            self.join([code], joined)
            self.hide_all_but(joined, ["tvmconvgrad_nothing"])
            self.share(joined, Path(folder, "liba.so"))
            if static:
                self.archive(joined, Path(folder, "liba.a"))

    @property
    def _command(self) -> list[str]:
        return c_tools.words(self.compiler)

    def _tool(self, name: str) -> list[str]:
        """The command that OBJCOPY or AR names, or else the binutils' program that belongs to the compiler."""
        variable = name.upper()
        named = os.environ.get(variable)
        found = c_tools.words(named) if named else [self._run([*self._command, f"-print-prog-name={name}"]).strip()]
        if shutil.which(found[0]) is None:
            ways = f"install the package binutils, or name it in {variable}"
            raise self.failure(f"a bundle takes {name}, and {found[0]} was not found: {ways}")
        return found

    def _run(self, command: list[str]) -> str:
        try:
            return programs.run(command).stdout
        except OSError as reason:
            raise self.failure(f"{command[0]} cannot be run: {reason}") from None
        except subprocess.CalledProcessError as reason:
            raise self.failure(f"{' '.join(command[:8])} ... failed:\n{reason.stderr}") from None
