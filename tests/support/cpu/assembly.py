"""Reading a kernel's assembly, as LLVM writes it for x86-64 and AArch64."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LABEL = re.compile(r"^(\.\w+):")
_BRANCH = re.compile(r"^\t(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s.*?(\.\w+)$")
# Vectors that are saved where the stack pointer or the frame pointer leads.
_SAVE = re.compile(r"^\t(?:v?mov\w+\s+%[xyz]mm\d+, -?\w*\(%r[sb]p|st\w+\s+[qdv]\d+.*\[(?:sp|x29))")


def simple_loops(assembly: str) -> Iterator[list[str]]:
    """The lines of each loop without another branch inside: from a label to the next branch, which leads back to it."""
    label, body = "", list[str]()
    for line in assembly.splitlines():
        body.append(line)
        if found := _LABEL.match(line):
            label, body = found[1], [line]
        elif branch := _BRANCH.match(line):
            if branch[1] == label:
                yield body
            label, body = "", []


def count(lines: list[str], instruction: str) -> int:
    """How many lines have an instruction, given as a regular expression."""
    return sum(re.search(instruction, line) is not None for line in lines)


def saves(lines: list[str]) -> int:
    """How many vectors are stored on the stack."""
    return sum(_SAVE.match(line) is not None for line in lines)


Operand = tuple[int, str]
"""Of x86-64: bytes, and the registers that these are added to."""


def operands(assembly: str, instruction: str) -> list[Operand]:
    """Where in memory the instructions with a name, given as a regular expression, read or write."""
    found = re.findall(rf"^\t{instruction}\s.*?(-?\d*)\((%[^)]+)\)", assembly, re.MULTILINE)
    return [(int(offset or 0), registers) for offset, registers in found]
