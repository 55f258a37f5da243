"""The ``rondel`` command. Each command is a file of its own; here they are joined, and errors end."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rondel import __version__
from rondel.client.cli import model
from rondel.client.cli.demo import demo
from rondel.client.cli.doctor import doctor
from rondel.client.cli.generate import generate
from rondel.client.cli.output import err, print_error
from rondel.client.cli.serve import serve
from rondel.client.cli.signals import tidy_exit
from rondel.decoder.errors import RondelError

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C has ended."""


class RondelGroup(TyperGroup):
    """Turns errors that were raised on purpose into one line and exit code 1, and Ctrl-C into 130."""

    def invoke(self, ctx: Any) -> object:
        try:
            with tidy_exit():
                return super().invoke(ctx)
        except RondelError as error:
            print_error(error.message)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            err.print()  # the shell's prompt belongs on a line of its own, not after ^C
            raise typer.Exit(INTERRUPTED) from None


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
app.command()(doctor)
app.add_typer(model.app, name="model")


def main() -> None:
    """Entry point of the ``rondel`` command."""
    app()
