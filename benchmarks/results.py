"""Write RESULTS.md: tables and plots of all files of results/, behind the notes.

    tvmconvgrad bench all --rounds 7 --threads 1 --json bench.json
    python benchmarks/results.py add bench.json --machine "AMD EPYC (Zen 5)"  # into results/amd-epyc-zen-5-DATE.json
    python benchmarks/results.py                                              # RESULTS.md and results/*.svg anew

A file of results/ has the runs of one machine and day. Of each gradient it keeps what the tables show.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import date
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

from tvmconvgrad.bench.results.measurement import Measurement

FOLDER = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("RESULTS.md")
Run = dict[str, Any]
"""One run of `tvmconvgrad bench`: its command, machine, peak, columns and gradients."""
KINDS = {"depthwise": "depthwise layers", "stem": "first layers", "wide": "dense, 64 channels and more"}


def condensed(bench: Run) -> Run:
    """What is kept of the JSON that `bench` writes."""
    machine = bench["machine"]
    return {
        "command": bench["command"],
        "target": machine["target"],
        "threads": machine["threads"],
        "gflops": bench["roof"]["gflops"],
        "gigabytes": bench["roof"]["gigabytes"],
        "versions": {name: machine[name] for name in ("tvmconvgrad", "oneDNN", "PyTorch") if name in machine},
        "columns": list(bench["columns"]),
        "gradients": [_gradient(entry, bench["columns"]) for entry in bench["measurements"]],
    }


def _gradient(entry: dict[str, Any], columns: dict[str, list[str]]) -> dict[str, Any]:
    measured = Measurement(**{field.name: entry[field.name] for field in fields(Measurement) if field.name in entry})
    ratios = {title: measured.ratio(labels) for title, labels in columns.items()}
    return {
        **{name: entry[name] for name in ("suite", "layer", "kind", "operator", "dtype")},
        "kinds": [kind for kind in KINDS if entry[f"is_{kind}"]],
        "ms": round(measured.seconds * 1e3, 4),
        "gflops": round(measured.gflops, 1),
        "intensity": round(measured.intensity, 2),
        "workspace": measured.workspace_bytes,
        "tensors": measured.tensor_bytes,
        "ratios": {title: [round(value, 3) for value in ratio] for title, ratio in ratios.items() if ratio is not None},
    }


def add(bench: Path, machine: str, day: str) -> Path:
    """Add a run to the file of its machine and day; returns the file."""
    name = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    path = FOLDER / f"{name}-{day}.json"
    found = json.loads(path.read_text()) if path.exists() else {"machine": machine, "date": day, "runs": []}
    found["runs"].append(condensed(json.loads(bench.read_text())))
    write(path, found)
    return path


def write(path: Path, found: dict[str, Any]) -> None:
    """Write a file of results/: a line for each gradient, so that versions of it can be compared."""
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(found, separators=(",", ":"))
    path.write_text(text.replace('{"suite":', '\n{"suite":') + "\n")


def page() -> str:
    """RESULTS.md; draws the plots that it shows."""
    parts = [(FOLDER / "notes.md").read_text().rstrip()]
    for path in sorted(FOLDER.glob("*.json")):
        found = json.loads(path.read_text())
        for number, run in enumerate(found["runs"], 1):
            plot = path.with_name(f"{path.stem}-{number}.svg")
            draw(run, plot)
            parts.append("\n".join(section(found, run, plot)))
    return "\n\n".join(parts) + "\n"


def section(found: dict[str, Any], run: Run, plot: Path) -> Iterator[str]:
    """One run: what it is, its plot, its means, and a table for each suite."""
    dtypes = ", ".join(dict.fromkeys(entry["dtype"] for entry in run["gradients"]))
    threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    yield f"## {found['machine']}, {threads}, {dtypes}\n"
    yield f"`{run['command']}`, {found['date']}, `{run['target']}`, {versions}."
    yield f"The FMA peak was {run['gflops']:.0f} GFLOP/s, memory had {run['gigabytes']:.0f} GB/s.\n"
    yield f"![roofline and ratios](results/{plot.name})\n"
    yield from means(run)
    for suite in dict.fromkeys(entry["suite"] for entry in run["gradients"]):
        mine = [entry for entry in run["gradients"] if entry["suite"] == suite]
        yield f"\n<details><summary>{suite}, {_counted(mine)}</summary>\n"
        yield from layers(mine, run)
        yield "\n</details>"


def means(run: Run) -> Iterator[str]:
    """The table of geometric means, by operator and by kind of layer."""
    yield from _head(["geometric means", "number", *run["columns"], "share of peak"])
    for operator in dict.fromkeys(entry["operator"] for entry in run["gradients"]):
        mine = [entry for entry in run["gradients"] if entry["operator"] == operator]
        groups = {"all": mine, **{title: [e for e in mine if kind in e["kinds"]] for kind, title in KINDS.items()}}
        for title, members in groups.items():
            if members:
                ratios = [_mean(members, column) for column in run["columns"]]
                share = geometric_mean([entry["gflops"] / run["gflops"] for entry in members])
                yield _row([f"{operator}, {title}", len(members), *ratios, f"{share:.0%}"])


def _counted(entries: Sequence[dict[str, Any]]) -> str:
    """How many gradients there are, and how many forwards, if any."""
    forwards = sum(entry["kind"] == "forward" for entry in entries)
    return f"{len(entries) - forwards} gradients" + (f" and {forwards} forwards" if forwards else "")


def _mean(members: Sequence[dict[str, Any]], column: str) -> str:
    known = [entry for entry in members if column in entry["ratios"]]
    if not known:
        return "-"
    least = min(known, key=lambda entry: float(entry["ratios"][column][0]))
    mean = geometric_mean([entry["ratios"][column][0] for entry in known])
    return f"{mean:.2f} (least {least['ratios'][column][0]:.2f}, {least['suite']}/{least['layer']})"


def layers(entries: Sequence[dict[str, Any]], run: Run) -> Iterator[str]:
    """A line for each gradient: its time, share of the peak, ratios with their spread, and workspace."""
    yield from _head(["layer", "gradient", "ms", "peak", *run["columns"], "workspace / tensors"])
    for entry in entries:
        ratios = [_ratio(entry["ratios"].get(column)) for column in run["columns"]]
        share, workspace = entry["gflops"] / run["gflops"], entry["workspace"] / entry["tensors"]
        kind = f"{entry['kind']} {entry['dtype']}"
        yield _row([entry["layer"], kind, f"{entry['ms']:.2f}", f"{share:.0%}", *ratios, f"{workspace:.2f}"])


def _ratio(found: Sequence[float] | None) -> str:
    return "-" if found is None else "{:.2f} ({:.2f}-{:.2f})".format(*found)


def _head(titles: Sequence[str]) -> list[str]:
    return [_row(titles), _row(["---"] * len(titles))]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def draw(run: Run, path: Path) -> None:
    """All gradients below the machine's roof, and the ratios of each column in ascending order, as SVG."""
    rcParams["svg.hashsalt"] = path.stem  # the same picture is the same text
    figure = Figure(figsize=(10, 4), layout="constrained")
    roofline, sorted_ratios = figure.subplots(1, 2)
    entries = run["gradients"]
    for kind in dict.fromkeys(entry["kind"] for entry in entries):
        mine = [entry for entry in entries if entry["kind"] == kind]
        roofline.scatter([e["intensity"] for e in mine], [e["gflops"] for e in mine], s=8, label=kind)
    intensities = sorted(entry["intensity"] for entry in entries)
    roofline.plot(intensities, [min(run["gflops"], run["gigabytes"] * x) for x in intensities], color="black", lw=0.8)
    roofline.set(xscale="log", yscale="log", xlabel="operations a byte of the tensors", ylabel="GFLOP/s")
    for column in run["columns"]:
        ratios = sorted(entry["ratios"][column][0] for entry in entries if column in entry["ratios"])
        sorted_ratios.plot([100 * (i + 0.5) / len(ratios) for i in range(len(ratios))], ratios, label=column)
    sorted_ratios.axhline(1, color="black", lw=0.8)
    sorted_ratios.set(yscale="log", xlabel="% of the gradients", ylabel="the others' time by ours")
    for panel in (roofline, sorted_ratios):
        panel.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb")
    adding = verbs.add_parser("add", help="keep a run that `tvmconvgrad bench --json` has written")
    adding.add_argument("bench", type=Path)
    adding.add_argument("--machine", required=True)
    adding.add_argument("--date", default=date.today().isoformat())
    options = parser.parse_args()
    if options.verb == "add":
        print(add(options.bench, options.machine, options.date))
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
