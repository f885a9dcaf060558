"""A worker that describes and builds candidates: python -m tvmconvgrad.tuning.building. What it is asked: making.py."""

from __future__ import annotations

import sys

from tvmconvgrad.tuning.serving import serve


def main() -> None:
    """Answer until the parent is gone. The process is ours alone, so that it may leave out what costs time."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # TVM would import it, which takes as long as TVM itself
    from tvmconvgrad.tuning import making

    _without_type_checks()
    serve({"describe": making.describe, "build": making.build})


def _without_type_checks() -> None:
    """Call the instructions of a schedule without TVM's comparison of types, a third of the time of scheduling."""
    from tvm.s_tir import Schedule

    for name, method in list(vars(Schedule).items()):
        if hasattr(method, "__wrapped__"):
            setattr(Schedule, name, method.__wrapped__)


if __name__ == "__main__":
    main()
