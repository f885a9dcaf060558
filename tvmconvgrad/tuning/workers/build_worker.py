"""A worker that describes and builds candidates: python -m tvmconvgrad.tuning.workers.build_worker.

What it is asked: candidates.py.
"""

from __future__ import annotations

from tvmconvgrad.compiler.import_tvm import import_tvm
from tvmconvgrad.workers.serving import serve


def main() -> None:
    """Answer until the parent is gone."""
    import_tvm()
    from tvmconvgrad.tuning.workers import candidates

    serve({"describe": candidates.describe, "build": candidates.build})


if __name__ == "__main__":
    main()
