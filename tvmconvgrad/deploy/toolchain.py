"""The C compiler and binutils, as far as a bundle needs them; for this machine or another architecture."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_COMPILE = ("-x", "c", "-std=gnu11", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror=implicit")
# No undefined symbol is left. Never unloaded: its threads run its code. Only what is needed is named as needed.
_SHARED = ("-shared", "-pthread", "-static-libgcc", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,--as-needed")


@dataclass(frozen=True)
class Toolchain:
    """A C compiler that gcc or clang is, and its binutils. `failure` makes the exception for a tool that fails.

    `options` go to the compiler whenever it is called.
    """

    compiler: str
    failure: Callable[[str], Exception]
    options: tuple[str, ...] = ()

    def compile(self, source: Path, output: Path, folders: Iterable[Path]) -> None:
        """A C file to an object; headers are looked for in `folders`."""
        includes = [f"-I{folder}" for folder in folders]
        self._run([self.compiler, *_COMPILE, *self.options, *includes, "-c", str(source), "-o", str(output)])

    def join(self, objects: Sequence[Path], output: Path) -> None:
        """Several objects to one, without what debuggers read."""
        self._run([self.compiler, "-r", "-nostdlib", "-Wl,--strip-debug", "-o", str(output), *map(str, objects)])

    def hide_all_but(self, code: Path, public: Iterable[str]) -> None:
        """Make an object's symbols its own, so that those of another one do not take their place."""
        self._run([self._tool("objcopy"), *(f"--keep-global-symbol={symbol}" for symbol in public), str(code)])

    def share(self, code: Path, output: Path) -> None:
        """An object to a shared library."""
        name = f"-Wl,-soname,{output.name}"
        self._run([self.compiler, *_SHARED, *self.options, name, "-o", str(output), str(code), "-lm"])

    def archive(self, code: Path, output: Path) -> None:
        """An object to a static library; the same bytes for the same object."""
        self._run([self._tool("ar"), "rcsD", str(output), str(code)])

    def _tool(self, name: str) -> str:
        """The binutils' program that belongs to the compiler."""
        found = self._run([self.compiler, f"-print-prog-name={name}"]).strip()
        if shutil.which(found) is None:
            raise self.failure(f"a bundle takes {name}, and {found} was not found: install the package binutils")
        return found

    def _run(self, command: list[str]) -> str:
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except OSError as reason:
            raise self.failure(f"{command[0]} cannot be run: {reason}") from None
        except subprocess.CalledProcessError as reason:
            raise self.failure(f"{' '.join(command[:8])} ... failed:\n{reason.stderr}") from None
