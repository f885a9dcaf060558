"""python -m tests.fuzz_surface: arguments of all kinds, and damaged files, until the numbers are reached."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random


def main() -> int:
    """Fuzz; 1 where a fault was found, which is printed with what brings it back."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_surface", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="of the public surface, in this process")
    parser.add_argument("--files", type=int, default=1_000, help="damaged ones of each kind")
    parser.add_argument("--only", default="", help="kinds of files, separated by commas")
    parser.add_argument("--go-on", action="store_true", help="after a fault, and print each one")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TVMCONVGRAD_CACHE_DIR", folder)
        os.environ["TVMCONVGRAD_TUNING_DIR"] = f"{folder}/logs"
        from tests.fuzz_surface.judging import Found
        from tests.fuzz_surface.session import fuzz_calls, fuzz_files, stop

        def go_on(fault: Found) -> None:
            faults.append(fault)
            print(f"FAULT\n{fault}", file=sys.stderr, flush=True)

        print(f"seed {given.seed}", flush=True)
        faults: list[Found] = []
        tell = go_on if given.go_on else stop
        torch = importlib.util.find_spec("torch") is not None
        try:
            if given.calls:
                print(fuzz_calls(Random(given.seed), given.calls, Path(folder), torch, tell=tell), flush=True)
            for line in fuzz_files(
                Random(given.seed), given.files, Path(folder), set(filter(None, given.only.split(","))), tell
            ):
                print(line, flush=True)
        except Found as fault:
            print(f"FAULT with --seed {given.seed}:\n{fault}", file=sys.stderr)
            return 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
