"""A worker that builds libraries: python -m tvmconvgrad.tuning.building.

{"do": "build", "module": path of TVM's JSON, "target": TVM's dict or a string, "library": path to write}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm

from tvmconvgrad.build.compiler import compile_module
from tvmconvgrad.targets import parse_target
from tvmconvgrad.tuning.serving import serve


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Compile and link one program."""
    path = Path(request["module"])
    module = tvm.ir.load_json(path.read_text(encoding="utf-8"))
    path.unlink()
    Path(request["library"]).write_bytes(compile_module(module, parse_target(request["target"])))
    return {"library": request["library"]}


if __name__ == "__main__":
    serve({"build": build})
