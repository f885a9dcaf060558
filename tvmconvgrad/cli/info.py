"""tvmconvgrad info"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys

import rich_click as click

from tvmconvgrad.cache.folder import CacheFolderError
from tvmconvgrad.cache.limit import limit
from tvmconvgrad.cache.store import KernelCache
from tvmconvgrad.cli.common.errors import user_errors
from tvmconvgrad.cli.common.help import Command
from tvmconvgrad.common.terminal import in_bytes, print_facts
from tvmconvgrad.compiler import c_tools
from tvmconvgrad.compiler.cuda import toolkit
from tvmconvgrad.machines.host import ARCHITECTURES, host_architecture, host_features
from tvmconvgrad.machines.targets import parse_target
from tvmconvgrad.machines.triples import linux_triple
from tvmconvgrad.nvidia import driver
from tvmconvgrad.runtime.threads import get_num_threads
from tvmconvgrad.spec.values import counted
from tvmconvgrad.version import __version__

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes")


@click.command(cls=Command)
@click.option("--cpus", is_flag=True, help="Print only LLVM's names of CPUs, as -mcpu= takes them.")
def info(cpus: bool) -> None:
    """Show versions, this machine's CPU as a target, threads, the C compiler, GPUs, and the cache.

    \b
    tvmconvgrad info
    tvmconvgrad info --cpus
    """
    if cpus:
        _print_cpus()
        return
    with user_errors():
        facts: dict[str, object] = {
            "tvmconvgrad": __version__,
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
            "Python": f"{sys.version.split()[0]} ({platform.system()}, {platform.machine()})",
            "target": parse_target(),
            "features": " ".join(sorted(host_features())),
            "threads": get_num_threads(),
            "C compiler": _c_compiler(),
            "GPUs": _gpus(),
            "CUDA's compiler": toolkit.installed() or "none",
            "cache": _cache(),
        }
    print_facts(facts)


def _cache() -> str:
    """The cache's folder and what it holds, or why it cannot be used."""
    store = KernelCache()
    try:
        most = limit()
        held = f"{counted(len(store.entries()), 'kernel')}, {in_bytes(store.size())}"
        return f"{store.folder} ({held} of {'any number' if most is None else f'at most {in_bytes(most)}'})"
    except CacheFolderError as reason:
        return f"none: {reason}"


def _print_cpus() -> None:
    from tvmconvgrad.compiler import llvm  # imports TVM

    for architecture in sorted(set(ARCHITECTURES.values())):
        for name in llvm.cpus(linux_triple(architecture)):
            click.echo(f"{architecture}  {name}")


def _c_compiler() -> str:
    """What kernels are linked by, and its version."""
    found = c_tools.find_compiler(host_architecture())
    if found is None:
        return "none: kernels are linked by gcc or clang, which CXX may name"
    command = c_tools.words(found)
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"{found}, which does not work"
    return f"{done.stdout.partition(chr(10))[0]}, {found}"


def _gpus() -> str:
    """NVIDIA's GPUs with their architectures, or why there are none."""
    try:
        found = driver.driver()
    except driver.MissingGpu as reason:
        return f"none: {reason}"
    return ", ".join(f"{found.name(gpu)} ({found.architecture(gpu)})" for gpu in range(found.devices))
