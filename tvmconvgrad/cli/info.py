"""tvmconvgrad info"""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import rich_click as click

from tvmconvgrad import __version__, get_num_threads
from tvmconvgrad.cli.errors import user_errors
from tvmconvgrad.cli.output import in_bytes, print_facts
from tvmconvgrad.compiling.cache import KernelCache
from tvmconvgrad.compiling.cuda import toolkit
from tvmconvgrad.compiling.folder import CacheFolderError
from tvmconvgrad.runtime.cuda import driver
from tvmconvgrad.targets import host_features, parse_target

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes")


@click.command()
def info() -> None:
    """Versions, this machine's CPU as a target, threads, GPUs, and the cache."""
    with user_errors():
        facts: dict[str, object] = {
            "tvmconvgrad": __version__,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
            "Python": f"{sys.version.split()[0]} ({platform.system()}, {platform.machine()})",
            "target": parse_target(),
            "features": " ".join(sorted(host_features())),
            "threads": get_num_threads(),
            "GPUs": _gpus(),
            "CUDA's compiler": toolkit.installed() or "none",
            "cache": _cache(),
        }
    print_facts(facts)


def _cache() -> str:
    """The cache's folder and what it holds, or why it cannot be used."""
    store = KernelCache()
    try:
        return f"{store.folder} ({len(store.entries())} kernels, {in_bytes(store.size())})"
    except CacheFolderError as reason:
        return f"none: {reason}"


def _gpus() -> str:
    """NVIDIA's GPUs with their architectures, or why there are none."""
    try:
        found = driver.driver()
    except driver.MissingGpu as reason:
        return f"none: {reason}"
    return ", ".join(f"{found.name(gpu)} ({found.architecture(gpu)})" for gpu in range(found.devices))
