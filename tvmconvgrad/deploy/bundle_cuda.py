"""A bundle for NVIDIA GPUs: a manifest, and a file of machine code for each kernel. It is used from Python alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tvmconvgrad.compiling.aside import aside
from tvmconvgrad.compiling.cuda import compiler
from tvmconvgrad.deploy import describing, manifest
from tvmconvgrad.deploy.bundle import Progress, with_hashes
from tvmconvgrad.deploy.describing import Wanted
from tvmconvgrad.deploy.manifest import CUDA, BundledKernel, Code
from tvmconvgrad.deploy.replacing import replacing
from tvmconvgrad.layers import LayerGradient
from tvmconvgrad.runtime.cuda.launches import Launch
from tvmconvgrad.spec.reducing import reduced
from tvmconvgrad.targets import Target
from tvmconvgrad.tuning import lookup

SUFFIX = ".fatbin"

Built = tuple[compiler.Built, str, "Future[tuple[bytes, dict[str, Any]]]"]
"""A kernel's program, where its numbers come from, and its machine code."""


def build_cuda_bundle(
    name: str, gradients: Sequence[LayerGradient], targets: Sequence[Target], folder: Path, progress: Progress
) -> None:
    """Build a bundle and make it `folder`, whose old bundle it replaces.

    Raises ValueError where `folder` is anything else than a bundle, or for an architecture that the toolkit does not
    know, MissingToolkit without a toolkit, OSError where the folder cannot be written.
    """
    wanted = describing.name_all(name, gradients)
    with replacing(folder) as new:
        kernels = _compile_all(wanted, targets, new, progress)
        made = describing.describe(name, kernels, {target: frozenset() for target in targets}, CUDA, [])
        (new / manifest.FILE).write_text(with_hashes(made, new).to_json(), encoding="ascii")


def _compile_all(
    wanted: Sequence[Wanted], targets: Sequence[Target], folder: Path, progress: Progress
) -> list[BundledKernel]:
    """The kernels as the manifest has them, with their files written. The toolkit works beside TVM, on all CPUs."""
    total = len(wanted) * len(targets)
    built: list[Built] = []
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        stack.callback(pool.shutdown, cancel_futures=True)
        for each in wanted:
            for target in targets:
                progress(f"{each.name} {target}", len(built), total)
                built.append(_build(each, target, pool))
        progress("compiling", total, total)
        codes = [_code(each, target, found, folder) for (each, target), found in zip(_pairs(wanted, targets), built)]
    kernels = []
    for place, each in enumerate(wanted):
        mine = tuple(codes[place * len(targets) : (place + 1) * len(targets)])
        size = max(code.workspace_bytes for code in mine)
        kernels.append(replace(describing.without_code(each), codes=mine, workspace_bytes=size))
    return kernels


def _pairs(wanted: Sequence[Wanted], targets: Sequence[Target]) -> list[tuple[Wanted, Target]]:
    return [(each, target) for each in wanted for target in targets]


def _build(wanted: Wanted, target: Target, pool: ThreadPoolExecutor) -> Built:
    problem = reduced(wanted.gradient.problem)
    make = partial(lookup.make_tuned, problem, target, partial(compiler.build, problem, target, None))
    built, origin = aside(make)
    return built, origin, pool.submit(compiler.compile_program, built.program, target)


def _code(wanted: Wanted, target: Target, found: Built, folder: Path) -> Code:
    built, origin, future = found
    image, facts = future.result()
    path = folder / f"{wanted.name}.{target.arch}{SUFFIX}"
    path.write_bytes(image)
    launches = tuple(Launch.from_dict(launch) for launch in facts["launches"])
    digest = hashlib.sha256(image).hexdigest()
    return Code(str(target), str(built.scheduled), origin, facts["workspace_bytes"], path.name, digest, launches)
