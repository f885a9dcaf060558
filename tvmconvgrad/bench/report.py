"""A run: the machine's roof, all gradients one after the other, the means; on the terminal and as JSON's types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from tvmconvgrad.bench.machine import Roof, describe, measure_roof
from tvmconvgrad.bench.measure import measure
from tvmconvgrad.bench.results.measurement import Measurement, columns
from tvmconvgrad.bench.results.summary import summarise
from tvmconvgrad.bench.results.table import Table
from tvmconvgrad.bench.variants import Variant
from tvmconvgrad.bench.workers.session import Session
from tvmconvgrad.common.terminal import print_table
from tvmconvgrad.layers import LayerGradient, Selection
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.spec.values import counted


class Report:
    """What a run is asked for, and what it has measured so far."""

    def __init__(
        self,
        variants: Sequence[Variant],
        target: Target,
        cpus: list[int],
        rounds: int,
        seed: int,
        command: str,
    ) -> None:
        self._variants, self._target, self._cpus = list(variants), target, cpus
        self._rounds, self._seed, self._command = rounds, seed, command
        self.columns = columns([variant.label for variant in variants])
        self.measured: list[Measurement] = []
        self.roof = Roof(0.0, 0.0)
        self._versions: dict[str, str] = {}

    def run(self, selection: Selection, console: Console) -> None:
        """Measure gradients, each with the name of its suite, and print them.

        Raises WrongResult where ours is wrong, WorkerFailed where it fails, ValueError where no C compiler works.
        """
        self.roof = measure_roof(self._target, self._cpus)
        machine = describe(self._target, self._cpus)
        about = f"{machine['cpu']}, {machine['target']}, threads: {machine['threads']}"
        roof = f"FMA peak {self.roof.gflops:.0f} GFLOP/s, memory {self.roof.gigabytes:.0f} GB/s"
        console.print(Text(f"{about}; {roof}"))
        table = Table(self.columns, self.roof.gflops)
        with Session(self._variants, self._cpus) as session:
            self._versions = session.versions
            console.print(Text(", ".join(f"{name} {version}" for name, version in self._versions.items())))
            with _progress(len(selection), console) as advance:
                for suite, gradient in selection:
                    advance(f"{suite} {gradient.layer.name}")
                    self._measure(session, suite, gradient, table, console)
        for origin, count in Counter(entry.origin for entry in self.measured).items():
            console.print(Text(f"decisions of {count} of {counted(len(self.measured), 'kernel')}: {origin}"))
        groups = summarise(self.measured, self.columns, self.roof.gflops)
        print_table(table.summary(groups), console)

    def _measure(self, session: Session, suite: str, gradient: LayerGradient, table: Table, console: Console) -> None:
        if not self.measured or self.measured[-1].suite != suite:
            console.print(Text(f"\n{suite}", style="bold"))
            console.print(table.head())
        measured = measure(session, suite, gradient, self._rounds, self._seed)
        self.measured.append(measured)
        for line in (table.line(measured), *table.notes(measured)):
            console.print(line)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON's types."""
        groups = summarise(self.measured, self.columns, self.roof.gflops)
        return {
            "command": self._command,
            "machine": {**describe(self._target, self._cpus), **self._versions},
            "roof": self.roof.to_dict(),
            "rounds": self._rounds,
            "seed": self._seed,
            "variants": [variant.to_dict() for variant in self._variants],
            "columns": {column.title: list(column.labels) for column in self.columns},
            "measurements": [entry.to_dict() for entry in self.measured],
            "summary": [group.to_dict() for group in groups],
        }


@contextmanager
def _progress(total: int, console: Console) -> Iterator[Any]:
    """A bar below the lines, on a terminal. It is drawn between measurements only: drawing takes time too."""
    if not console.is_terminal:
        yield lambda _: None
        return
    shown = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*shown, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def advance(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, completed=begun)
            bar.refresh()
            begun += 1

        yield advance
