"""A bundle for NVIDIA GPUs: a manifest, and a file of machine code for each kernel. It is used from Python alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tvmconvgrad.bundles import manifest
from tvmconvgrad.bundles.manifest import CUDA, BundledKernel, Code
from tvmconvgrad.compiler import service
from tvmconvgrad.deploy import describing
from tvmconvgrad.deploy.bundle import Made, Progress, maker, with_hashes
from tvmconvgrad.deploy.describing import Wanted
from tvmconvgrad.deploy.replacing import replacing
from tvmconvgrad.layers import LayerGradient
from tvmconvgrad.machines.targets import Target
from tvmconvgrad.nvidia.launches import Launch

SUFFIX = ".fatbin"


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
    """The kernels as the manifest has them, with their files written."""
    total, done = len(wanted) * len(targets), 0
    found = []
    makers = [maker(each.gradient.problem, target) for each in wanted for target in targets]
    with closing(service.make_all(makers)) as made:
        for each in wanted:
            codes = []
            for target in targets:
                progress(f"{each.name} {target}", done, total)
                codes.append(_code(each, target, next(made), folder))
                done += 1
            size = max(code.workspace_bytes for code in codes)
            found.append(replace(describing.without_code(each), codes=tuple(codes), workspace_bytes=size))
    return found


def _code(wanted: Wanted, target: Target, made: Made, folder: Path) -> Code:
    (image, facts), origin = made
    path = folder / f"{wanted.name}.{target.arch}{SUFFIX}"
    path.write_bytes(image)
    launches = tuple(Launch.from_dict(launch) for launch in facts["launches"])
    digest = hashlib.sha256(image).hexdigest()
    return Code(str(target), facts["schedule"], origin, facts["workspace_bytes"], path.name, digest, launches)
