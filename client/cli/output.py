"""How the commands write: tables for people, JSON lines for programs, errors as one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
"""Standard output: what was asked for."""

err = Console(stderr=True, highlight=False)
"""Standard error: progress, warnings, errors. Never mixed into what a program reads."""


def print_json(value: Mapping[str, object] | Iterable[object]) -> None:
    """Write one value as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=True, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Write a text as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_error(message: str) -> None:
    """Write one line that begins with ``error:``, whatever the message holds."""
    line = Text("error: ", style="bold red")
    line.append(" ".join(message.split()), style="default")
    err.print(line, soft_wrap=True)


def print_note(message: str) -> None:
    """Write one line for the person at the terminal."""
    err.print(Text(message), soft_wrap=True)


def stream_text(text: str) -> None:
    """Write a piece of generated text at once. Characters that the terminal cannot show become ``?``."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors != "replace":
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while the block runs, if that is a terminal; told parts done and in all."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def facts_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def human_bytes(count: int) -> str:
    """A number of bytes as a person would say it: ``512 B``, ``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
