"""A report: rows under titles, and notes on what is in no row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar


class Cells(Protocol):
    """A row."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its text in each column."""


R = TypeVar("R", bound=Cells)


@dataclass(frozen=True)
class Report(Generic[R]):
    """The rows, and notes on what is in no row. `str(report)` is a table with the notes below it."""

    titles: ClassVar[tuple[str, ...]]
    rows: tuple[R, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.titles, *(row.cells for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*text, *self.notes])
