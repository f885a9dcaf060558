"""Help whose examples can be copied: they are printed as they stand, last, and never broken into lines."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import rich_click as click
from rich.text import Text

_MARK = "\b\n"


class _WithExamples:
    """What commands and groups have in common: the end of the help, after a line with \\b, is examples.

    One that the source breaks by a backslash is one line here.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help: str | None
        text, _, examples = inspect.cleandoc(self.help or "").partition(_MARK)
        self.help = text.strip()
        self.examples = re.sub(r"\s*\\\n\s*", " ", examples).strip()

    def format_epilog(self, ctx: click.Context, formatter: Any) -> None:
        """Print the examples. A terminal breaks a line that is too long for it, and copies it as one."""
        if self.examples:
            formatter.write(Text("Examples:", "bold"))
            formatter.write(Text(textwrap.indent(self.examples, "  ")), soft_wrap=True)


class Command(_WithExamples, click.RichCommand):
    """A command whose help has examples."""


class Group(_WithExamples, click.RichGroup):  # type: ignore[misc]
    """A group of commands whose help has examples."""
