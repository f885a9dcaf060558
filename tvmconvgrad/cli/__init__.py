"""The command line: one file a verb. Importing it imports no compiler."""

from __future__ import annotations

import rich_click as click

from tvmconvgrad.cli.bench import bench
from tvmconvgrad.cli.build import build
from tvmconvgrad.cli.cache import cache
from tvmconvgrad.cli.common.errors import PlainErrors
from tvmconvgrad.cli.demo import demo
from tvmconvgrad.cli.info import info
from tvmconvgrad.cli.inspect import inspect
from tvmconvgrad.cli.layers import layers
from tvmconvgrad.cli.log import log
from tvmconvgrad.cli.prepare import prepare
from tvmconvgrad.cli.rpc import rpc
from tvmconvgrad.cli.run import run
from tvmconvgrad.cli.tune import tune
from tvmconvgrad.version import __version__

__all__ = ["main"]


_SETTINGS = {"help_option_names": ["-h", "--help"], "rich_help_config": {"text_paragraph_linebreaks": "\n\n"}}


@click.group(cls=PlainErrors, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="tvmconvgrad")
def main() -> None:
    """Convolution gradients, compiled by Apache TVM, with the semantics of oneDNN Graph's operators.

    \b
    tvmconvgrad demo
    tvmconvgrad run ConvolutionBackpropFilters --shapes 8,56,56,64 8,56,56,128 \\
        --auto-pad same_upper --filter-shape 3,3,64,128 --check
    """


for command in (run, inspect, bench, tune, log, rpc, layers, prepare, build, demo, cache, info):
    main.add_command(command)
