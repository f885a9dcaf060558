"""A worker that builds libraries: python -m tvmconvgrad.tuning.building.

{"do": "build", "module": path of TVM's JSON, "target": TVM's dict or a string, "library": path to write}

For a GPU the "library" is machine code with its launches, as a file of the cache has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm

from tvmconvgrad.compiling.compiler import compile_module
from tvmconvgrad.compiling.entry import Entry, pack
from tvmconvgrad.targets import Target, parse_target
from tvmconvgrad.tuning.serving import serve


def build(request: dict[str, Any]) -> dict[str, Any]:
    """Compile and link one program."""
    path = Path(request["module"])
    module = tvm.ir.load_json(path.read_text(encoding="utf-8"))
    path.unlink()
    Path(request["library"]).write_bytes(_compiled(module, parse_target(request["target"])))
    return {"library": request["library"]}


def _compiled(module: tvm.IRModule, target: Target) -> bytes:
    if target.kind != "cuda":
        return compile_module(module, target)
    from tvmconvgrad.compiling.cuda import compiler as for_gpu

    return pack(Entry.of({"arch": target.arch}, *for_gpu.compile_module(module, target)))


if __name__ == "__main__":
    serve({"build": build})
