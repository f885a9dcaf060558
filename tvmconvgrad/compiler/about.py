"""Tells another environment what this one compiles with: python -m tvmconvgrad.compiler.about. It imports no TVM."""

from __future__ import annotations

import json

from tvmconvgrad.machines import host
from tvmconvgrad.version import __version__
from tvmconvgrad.workers.environment import own_versions


def main() -> None:
    """Print a line of JSON: the versions, and this machine's CPU."""
    name, features = host.named_generation()
    cpu = [name, sorted(features), host.closest_generation()]
    print(json.dumps({"version": __version__, "versions": own_versions(), "cpu": cpu}))


if __name__ == "__main__":
    main()
