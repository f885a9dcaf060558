"""A bundle's code for NVIDIA GPUs: checked against the GPU that is here, loaded where a kernel is first called."""

from __future__ import annotations

from collections.abc import Mapping

from tvmconvgrad.bundles.errors import BundleError
from tvmconvgrad.bundles.manifest import BundledKernel, Manifest
from tvmconvgrad.common import process
from tvmconvgrad.machines.targets import Target, parse_target
from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime.cuda.function import CudaFunction, runs_on
from tvmconvgrad.runtime.cuda.kernel import CudaKernel
from tvmconvgrad.spec import Problem


class GpuCode:
    """The code of a bundle for GPUs. BundleError where this machine has none that it is for."""

    def __init__(self, manifest: Manifest, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self._archs = [str(parse_target(entry.target).arch) for entry in manifest.targets]
        self.place = self._best()
        self._functions: dict[str, CudaFunction] = {}

    def _best(self) -> int:
        """The target of the first GPU's own architecture, or else the latest that runs there."""
        have = ", ".join(self._archs)
        try:
            there = driver.driver().architecture(0)
        except driver.MissingGpu as reason:
            raise BundleError(f"it is for NVIDIA GPUs ({have}), and {reason}") from None
        able = [place for place, arch in enumerate(self._archs) if runs_on(arch, there)]
        if not able:
            raise BundleError(f"it has no code for this GPU, which is {there}: it has code for {have}")
        return max(able, key=lambda place: (int(self._archs[place][3:].rstrip("af")), self._archs[place]))

    def kernel(self, entry: BundledKernel, problem: Problem, target: Target) -> CudaKernel:
        """A kernel, as the one of a problem that differs in no more than axes of one element."""
        code = entry.codes[self.place]
        with process.lock:
            if entry.name not in self._functions:
                image, arch = self._contents[code.file], self._archs[self.place]
                self._functions[entry.name] = CudaFunction(image, code.launches, arch)
        return CudaKernel(problem, target, code.schedule, code.workspace_bytes, self._functions[entry.name])

    def runs_on(self, gpu: str | None) -> bool:
        """Whether it runs on a GPU of this architecture."""
        return gpu is not None and runs_on(self._archs[self.place], gpu)
