"""A user's mistake is one plain line and exit code 2; what the machine refuses, Ctrl-C and a closed pipe have codes of
their own. Everything else keeps its traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import rich_click as click

from tvmconvgrad import CacheFolderError, MissingKernel
from tvmconvgrad.cli.common.help import Group
from tvmconvgrad.common.errors import CompilerFailed, MissingTool
from tvmconvgrad.files.temporary import TemporaryFolderError
from tvmconvgrad.nvidia.driver import MissingGpu

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells report SIGINT."""
_WRONG_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


class UserError(click.ClickException):
    """What a user can put right; its message says how."""

    exit_code = 2


class Failed(click.ClickException):
    """What was asked for rightly, and could not be done: a full disk, for example."""

    exit_code = 1


def cannot_write(path: object, error: OSError) -> click.ClickException:
    """The error for a file or a folder: the user's where it is the wrong path."""
    kind = UserError if isinstance(error, _WRONG_PATH) else Failed
    return kind(f"{path}: cannot be written: {error.strerror or error}")


@contextmanager
def user_errors(about: str = "") -> Iterator[None]:
    """Turn what the package raises about bad input into UserError; `about` is put before the message."""
    try:
        yield
    except (ValueError, TypeError, CacheFolderError, TemporaryFolderError, MissingKernel, MemoryError) as error:
        raise UserError(f"{about}{error}") from error
    except (CompilerFailed, MissingTool, MissingGpu) as error:
        raise UserError(str(error)) from error


class _Ended(click.ClickException):
    """What ends a command from outside. Its message stands alone."""

    exit_code = INTERRUPTED


class _Unread(_Ended):
    """Nobody reads what is printed."""

    exit_code = 128 + 13  # as shells report SIGPIPE


class _Refused(_Ended):
    """The answer to a question was no."""

    exit_code = 1


class PlainErrors(Group):
    """A group of commands that reports errors as one line, and whose commands return their exit code."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run the command line and leave through SystemExit."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # a folder's name may be no text
        try:
            code = super().main(args, prog_name, **{**extra, "standalone_mode": False})
            sys.stdout.flush()  # what is refused only now is an error, too
        except click.ClickException as error:
            code = _told(error)
        except click.Abort as error:  # by Ctrl-C, or by the answer to a question
            code = _told(_interrupted() if isinstance(error.__context__, KeyboardInterrupt) else _Refused("Aborted!"))
        except KeyboardInterrupt:
            code = _told(_interrupted())
        except BrokenPipeError:
            code = _told(_unread())
        except OSError as error:
            code = _told(Failed(f"{error.filename or 'standard output'}: {error.strerror or error}"))
        sys.exit(code)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line, or print help."""
        with _endings():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with _endings():
            return super().invoke(ctx)


@contextmanager
def _endings() -> Iterator[None]:
    """Of Ctrl-C and of a closed pipe click would say something itself."""
    try:
        yield
    except KeyboardInterrupt:
        raise _interrupted() from None
    except BrokenPipeError:
        raise _unread() from None


def _interrupted() -> _Ended:
    return _Ended("Interrupted.")


def _unread() -> _Ended:
    """Nobody reads what is printed: neither what is in the buffers nor anything else is told."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    return _Unread("")


def _told(error: click.ClickException) -> int:
    """Print what has happened; returns the exit code."""
    words = " ".join(error.format_message().split())
    if words:
        with suppress(OSError):
            click.echo(words if isinstance(error, _Ended) else f"Error: {words}", err=True)
    return error.exit_code
