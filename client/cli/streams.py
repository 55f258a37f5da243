"""``rondel streams export`` and ``rondel streams import``: a server's streams to files and back."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from rondel.client.cli.output import human_bytes, print_json, print_note, progress
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import WrongUsage, wrong_usage

if TYPE_CHECKING:
    from rondel.client.sync import AttentionClient

DEFAULT_SERVER: Final = "127.0.0.1:7411"
STANDARD: Final = "-"
"""In place of a file: standard output or input. A file of that name is ./-"""

app = typer.Typer(
    help="Write a server's streams to files, and open streams from files.", no_args_is_help=True
)

Server = Annotated[str, typer.Option(help="host:port or unix:/path of the server.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Timeout = Annotated[float, typer.Option(help="Seconds for the whole of it.")]


@app.command("export")
def export_command(
    handle: Annotated[str, typer.Argument(help="The stream's handle.")],
    file: Annotated[
        str, typer.Argument(help="Where to; a file that is there is replaced. - is standard output.")
    ],
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Write a stream's snapshot to a file that only its owner may read; - is standard output.

    The file appears under its name whole or not at all. Standard output holds a part of it after an error,
    which no import takes.
    """
    if file == STANDARD and as_json:
        raise WrongUsage("the snapshot goes to standard output, there is no room for --json")
    if file != STANDARD and os.path.exists(file) and not os.path.isfile(file):
        raise WrongUsage(f"{file} is there and is no file")
    with (
        _connected(server, timeout) as client,
        _stdout() if file == STANDARD else replaced(Path(file)) as to,
        progress(f"exporting {handle}") as report,
    ):
        size = client.export_stream(handle, to, timeout=timeout, progress=report)
    if as_json:
        print_json({"handle": handle, "file": file, "bytes": size})
    else:
        print_note(f"{human_bytes(size)} in {'standard output' if file == STANDARD else file}")


@app.command("import")
def import_command(
    file: Annotated[str, typer.Argument(help="A snapshot; - is standard input.")],
    server: Server = DEFAULT_SERVER,
    projections: Annotated[
        str, typer.Option(help="Name of projections that the server has, for steps from embeddings.")
    ] = "",
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Open a stream from a snapshot and print its handle. It stays until it is closed or its lease ends."""
    with _source(file) as source, _connected(server, timeout) as client:
        with progress(f"importing {os.path.basename(file)}") as report:
            stream = client.import_stream(source, projections=projections, timeout=timeout, progress=report)
        stream.leave_open()
    if as_json:
        print_json({"handle": stream.handle, "length": stream.length, "generation": stream.generation})
    else:
        print_note(f"a stream of {stream.length} tokens is open")
        typer.echo(stream.handle)


@contextmanager
def _stdout() -> Iterator[IO[bytes]]:
    """Standard output, for bytes; flushed when the block has ended well."""
    if sys.stdout.isatty():
        raise WrongUsage("a snapshot is no text for a terminal: redirect standard output, or name a file")
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


@contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    if file == STANDARD:
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as source:
            yield source


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of ``path`` when the block has ended well, and is else
    removed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # or the name may be lost with the power
    finally:
        os.close(folder)


@contextmanager
def _connected(server: str, timeout: float) -> Iterator[AttentionClient]:
    with nothing_to_undo():  # here, because it brings in much
        from rondel.client.checks import checked_target, checked_timeout
        from rondel.client.sync import AttentionClient
    with wrong_usage():
        checked_target(server)
        checked_timeout(timeout)
    with AttentionClient(server) as client:
        yield client
