"""The kernels of bundles on a GPU: each checked against PyTorch in f64, then timed beside cuDNN.

    tvmconvgrad build resnet_50 --batch 64 --dtype f16 --dtype f32 --target "cuda -arch=sm_90" -o gpu/resnet_50
    python benchmarks/gpu.py gpu/resnet_50 --json results.json      # on the machine with the GPU

The second machine needs PyTorch, NumPy, NVIDIA's driver and this package's source: neither TVM nor CUDA's toolkit.
Times are CUDA's events around single calls, in rounds that take the implementations in turn; the L2 cache is
overwritten before each call, or left as it is with --warm. cuDNN may try all its algorithms, and takes TF32 for f32
where the bundle's target lets ours take it, too (-fpmath_mode=tf32). Beside both, a copy of as many bytes as a gradient
reads and writes tells what memory allows. Exit code 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import tvmconvgrad as cg
from tvmconvgrad.bench.gpu import report
from tvmconvgrad.bench.gpu.run import Options, Result, device_name, run
from tvmconvgrad.bench.gpu.timing import Clock, matrix_peak


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    given = _parse(words)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0  # all algorithms
    bundles = [cg.load(folder) for folder in given.bundles]
    end = time.monotonic() + 60 * given.minutes
    options = Options(given.device, given.rounds, not given.warm, given.seed, given.check, end)
    kernels = ((bundle.target, entry) for bundle in bundles for entry in bundle.manifest.kernels)
    types = dict.fromkeys(target.multiplied(entry.dtype) for target, entry in kernels)
    clock = Clock(given.device, options.flushed)
    peaks = {each: 0.0 if given.check else matrix_peak(each, given.device, clock) for each in types}
    print(_about(given, peaks))
    results: list[Result] = []
    for bundle in bundles:
        print(f"\n{bundle!r}\n{report.HEAD}")
        for result in run(bundle, lambda name: given.only in name, options):
            results.append(result)
            print(report.line(result, peaks), flush=True)
    return _finish(given, peaks, results, sum(map(len, bundles)))


def _finish(given: argparse.Namespace, peaks: dict[str, float], results: list[Result], count: int) -> int:
    groups = report.summaries(results, peaks)
    if groups:
        print(f"\n{report.table(groups)}")
    wrong = [result.name for result in results if result.checked.fault is not None]
    print(f"\n{len(results)} of {count} kernels checked, {len(wrong)} wrong{': ' if wrong else ''}{', '.join(wrong)}")
    if given.json is not None:
        content = {
            "command": sys.argv,
            "machine": _machine(given.device),
            "peaks_gflops": peaks,
            "l2_cache": "warm" if given.warm else "overwritten before each call",
            "rounds": given.rounds,
            "checks": {result.name: result.checked._asdict() for result in results},
            "measurements": [result.measured.to_dict() for result in results if result.measured is not None],
            "summary": [group.to_dict() for group in groups],
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _about(given: argparse.Namespace, peaks: dict[str, float]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in _machine(given.device).items())
    cache = "warm" if given.warm else "overwritten before each call"
    reached = ", ".join(f"{dtype} {peak / 1e3:.0f} TFLOP/s" for dtype, peak in peaks.items())
    return f"{machine}\nL2 cache {cache}; {given.rounds} rounds; products of matrices: {reached}"


def _machine(device: str) -> dict[str, Any]:
    return {
        "device": device_name(device),
        "PyTorch": torch.__version__,
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),
        "tvmconvgrad": cg.__version__,
    }


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no kernel after so many")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their names")
    parser.add_argument("--warm", action="store_true", help="leave the L2 cache as it is")
    parser.add_argument("--check", action="store_true", help="check, and measure nothing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda:0")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
