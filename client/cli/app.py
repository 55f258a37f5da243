"""The commands joined, and how they end: errors as one line, exit codes as a shell expects them.

0 = done, 1 = it failed, 2 = wrong usage (found before any work was done), 128 + n = ended by signal n.
``load`` and ``health`` also have 3: the run says nothing, nobody answered.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rondel.client.cli import arena, model, streams
from rondel.client.cli.accuracy import accuracy
from rondel.client.cli.demo import demo
from rondel.client.cli.doctor import doctor
from rondel.client.cli.endless import endless
from rondel.client.cli.generate import generate
from rondel.client.cli.health import health
from rondel.client.cli.load import load
from rondel.client.cli.output import err, print_error
from rondel.client.cli.serve import serve
from rondel.client.cli.signals import tidy_exit
from rondel.client.cli.usage import WrongUsage
from rondel.decoder.errors import RondelError


class RondelGroup(TyperGroup):
    """Turns errors that were raised on purpose into one line and exit code 1, and signals into 128 + n."""

    def invoke(self, ctx: Any) -> object:
        with tidy_exit() as came:
            try:
                return super().invoke(ctx)
            except BaseException as error:
                if came.first is not None:
                    # Whatever this is: an interrupt inside a call may come out of the clean-up as another.
                    with suppress(OSError):
                        err.print()  # the shell's prompt belongs on a line of its own, not after ^C
                    raise typer.Exit(128 + came.first) from None
                if not isinstance(error, RondelError | WrongUsage):
                    raise
                print_error(str(error))
                raise typer.Exit(2 if isinstance(error, WrongUsage) else 1) from None


app = typer.Typer(
    cls=RondelGroup,
    name="rondel",
    help="Bounded int8 key/value caches for decoder streams, the attention over them, and a small language "
    "model on top; in this process or behind a gRPC server.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from rondel import __version__

        typer.echo(f"rondel {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options of every command."""


app.command()(serve)
app.command()(generate)
app.command()(demo)
app.command()(accuracy)
app.command()(endless)
app.command()(load)
app.command()(doctor)
app.command()(health)
app.add_typer(model.app, name="model")
app.add_typer(streams.app, name="streams")
app.add_typer(arena.app, name="arena")


def run() -> NoReturn:
    """Run the command line of this process and exit."""
    code: str | int | None = 0
    try:
        try:
            app()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except OSError as error:
        code = _failed_output(error)
    sys.exit(code)


def _failed_output(error: OSError) -> int:
    """End after what the system refused, most often to take our output: a full disk, a closed pipe."""
    # What is still buffered cannot be written either; the interpreter would try, and complain, at its end.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:  # whoever closes a pipe has read enough
        with suppress(OSError):
            print_error(str(error))
    return 1
