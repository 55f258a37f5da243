"""``rondel streams``: a server's streams in a list, to files and back."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from rondel.client.cli.access import Access, with_access
from rondel.client.cli.output import human_bytes, out, print_json, print_note, progress
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import WrongUsage, wrong_usage

if TYPE_CHECKING:
    from rondel.client.sync import AttentionClient
    from rondel.client.values import ListedStream

DEFAULT_SERVER: Final = "127.0.0.1:7411"
STANDARD: Final = "-"
"""In place of a file: standard output or input. A file of that name is ./-"""

app = typer.Typer(
    help="List a server's streams, write them to files, and open streams from files.", no_args_is_help=True
)

Server = Annotated[str, typer.Option(help="host:port or unix:/path of the server.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Timeout = Annotated[float, typer.Option(help="Seconds for the whole of it.")]


@app.command("list")
@with_access
def list_command(server: Server = DEFAULT_SERVER, as_json: Json = False, *, access: Access) -> None:
    """List the streams of your tenant, oldest first. That does not keep them from expiring."""
    with _connected(server, access) as client:
        streams = client.list_streams()
    if as_json:
        print_json([asdict(stream) for stream in streams])
    else:
        out.print(_table(streams))


@app.command("export")
@with_access
def export_command(
    handle: Annotated[str, typer.Argument(help="The stream's handle.")],
    file: Annotated[
        str, typer.Argument(help="Where to; a file that is there is replaced. - is standard output.")
    ],
    server: Server = DEFAULT_SERVER,
    timeout: Timeout = 600.0,
    as_json: Json = False,
    *,
    access: Access,
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
        _connected(server, access, timeout) as client,
        _stdout() if file == STANDARD else replaced(Path(file)) as to,
        progress(f"exporting {handle}") as report,
    ):
        size = client.export_stream(handle, to, timeout=timeout, progress=report)
    if as_json:
        print_json({"handle": handle, "file": file, "bytes": size})
    else:
        print_note(f"{human_bytes(size)} in {'standard output' if file == STANDARD else file}")


@app.command("import")
@with_access
def import_command(
    file: Annotated[str, typer.Argument(help="A snapshot; - is standard input.")],
    server: Server = DEFAULT_SERVER,
    projections: Annotated[
        str, typer.Option(help="Name of projections that the server has, for steps from embeddings.")
    ] = "",
    timeout: Timeout = 600.0,
    as_json: Json = False,
    *,
    access: Access,
) -> None:
    """Open a stream from a snapshot and print its handle. It stays until it is closed or its lease ends."""
    with _source(file) as source, _connected(server, access, timeout) as client:
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


def _table(streams: list[ListedStream]) -> Table:
    table = Table()
    # Whole at any width: a handle is there to be copied.
    table.add_column("handle", no_wrap=True, min_width=max((len(each.handle) for each in streams), default=0))
    for heading in ("generation", "tokens", "reserved", "resident", "shared", "idle", "sealed"):
        table.add_column(heading, justify="right", overflow="fold")
    for stream in streams:
        sizes = (stream.bytes_reserved, stream.bytes_resident, stream.bytes_shared)
        table.add_row(
            Text(stream.handle),
            str(stream.generation),
            str(stream.length),
            *map(human_bytes, sizes),
            f"{stream.idle_seconds:.1f} s",
            "yes" if stream.sealed else "",
        )
    return table


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
def _connected(server: str, access: Access, timeout: float = 1.0) -> Iterator[AttentionClient]:
    with nothing_to_undo():  # here, because it brings in much
        from rondel.client.checks import checked_timeout
        from rondel.client.sync import AttentionClient
    with wrong_usage():
        checked_timeout(timeout)
        client = AttentionClient(server, **access)
    with client:
        yield client
