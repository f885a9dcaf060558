"""Which C compiler, binutils and options to take: by the environment variables that builds of C have always heeded.

CXX or CC is the compiler, also with words behind it ("gcc --sysroot=/opt/board", "ccache clang"); OBJCOPY and AR are
the binutils'. For a bundle, and for whatever is compiled for another architecture, CFLAGS and LDFLAGS are heeded too.
For this machine's own kernels they are not: those are kept on disk, and what one project is built with is not what the
next one wants.
"""

from __future__ import annotations

import os
import shlex
import shutil

from tvmconvgrad.machines.host import host_architecture
from tvmconvgrad.machines.triples import linux_triple

_NAMES = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def find_compiler(architecture: str) -> str | None:
    """The compiler that CXX or CC names, or else the usual one for this machine or for another architecture."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    if named:
        return named
    names = _NAMES if architecture == host_architecture() else (cross_compiler(architecture),)
    return next((found for found in map(shutil.which, names) if found), None)


def cross_compiler(architecture: str) -> str:
    """What Debian calls its compiler for an architecture."""
    return f"{linux_triple(architecture)}-gcc"


def words(compiler: str) -> list[str]:
    """The words of a command. A path with spaces is one where there is such a program."""
    if shutil.which(compiler):
        return [compiler]
    try:
        return shlex.split(compiler) or [compiler]
    except ValueError:  # a quotation mark that stands alone
        return [compiler]


def options(variable: str) -> list[str]:
    """The words of CFLAGS or LDFLAGS. ValueError."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as reason:
        raise ValueError(f"{variable}: {text!r} cannot be read: {reason}") from None


def options_for(architecture: str, *variables: str) -> list[str]:
    """The words of such variables where a kernel is for another architecture, and none for this machine's own."""
    if architecture == host_architecture():
        return []
    return [word for variable in variables for word in options(variable)]
