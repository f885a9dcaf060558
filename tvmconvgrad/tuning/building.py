"""A worker that describes and builds candidates: python -m tvmconvgrad.tuning.building. What it is asked: making.py."""

from __future__ import annotations

from tvmconvgrad.compiling.alone import import_tvm
from tvmconvgrad.workers.serving import serve


def main() -> None:
    """Answer until the parent is gone."""
    import_tvm()
    from tvmconvgrad.tuning import making

    serve({"describe": making.describe, "build": making.build})


if __name__ == "__main__":
    main()
