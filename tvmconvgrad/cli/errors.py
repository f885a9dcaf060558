"""A user's mistake is one plain line and exit code 2; everything else keeps its traceback."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import rich_click as click

from tvmconvgrad import CacheFolderError, MissingKernel
from tvmconvgrad.compiling.missing import MissingTool
from tvmconvgrad.compiling.temporary import TemporaryFolderError
from tvmconvgrad.runtime.cuda.driver import MissingGpu


class UserError(click.ClickException):
    """What a user can put right; its message says how."""

    exit_code = 2


@contextmanager
def user_errors(about: str = "") -> Iterator[None]:
    """Turn what the package raises about bad input into UserError; `about` is put before the message."""
    try:
        yield
    except (ValueError, TypeError, CacheFolderError, TemporaryFolderError, MissingKernel, MemoryError) as error:
        raise UserError(f"{about}{error}") from error
    except (MissingTool, MissingGpu) as error:
        raise UserError(str(error)) from error


class PlainErrors(click.RichGroup):
    """A group of commands that reports errors as one line, and whose commands return their exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run the command line and leave through SystemExit."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # a folder's name may be no text
        try:
            code = super().main(args, prog_name, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            click.echo(f"Error: {' '.join(error.format_message().split())}", err=True)
            code = error.exit_code
        except click.Abort:
            click.echo("Aborted!", err=True)
            code = 1
        sys.exit(code)
