"""``rondel arena``: what is in an arena's file, whether it is sound, and to be rid of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from rondel.client.cli.output import facts_table, human_bytes, out, print_json, print_note
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import WrongUsage, wrong_usage
from rondel.decoder.errors import ArenaFileError

if TYPE_CHECKING:
    from rondel.decoder.arena_report import ArenaReport, StreamReport

app = typer.Typer(
    help="Look into the file of an arena that is not in use (rondel serve --arena-file), or remove it.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="The arena's file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


@app.command("status")
def status_command(file: File, as_json: Json = False) -> None:
    """Show what is in it. Its tables and the streams' records are looked at, not their tokens."""
    _show(_report(file, None), as_json=as_json)


@app.command("verify")
def verify_command(
    file: File,
    verify: Annotated[
        str, typer.Option(help="full: every token that can be read; tail: the last page of each layer.")
    ] = "full",
    as_json: Json = False,
) -> None:
    """Compare the checksums of what is stored. Exit code 1 if anything is damaged; nothing is changed."""
    report = _report(file, verify)
    _show(report, as_json=as_json)
    if report.damaged_units or any(stream.reason for stream in report.streams):
        raise typer.Exit(1)


@app.command("clear")
def clear_command(
    file: File,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove it, with all streams in it. One that is in use, or that never was an arena, is left alone."""
    with nothing_to_undo():
        from rondel.decoder.cache.arena_file import removed
    if not yes and not typer.confirm(f"Remove {file} and all streams in it?", err=True):
        raise WrongUsage(f"{file} is left as it is")
    size = removed(file)
    if as_json:
        print_json({"file": os.fspath(file), "bytes": size})
    else:
        print_note(f"{file} is removed, {human_bytes(size)}")


def _report(file: Path, verify: str | None) -> ArenaReport:
    with nothing_to_undo():
        from rondel.decoder.arena_report import report
    if not file.exists():
        raise ArenaFileError(f"there is no {file}")
    with wrong_usage():
        return report(file, verify=verify)


def _show(report: ArenaReport, *, as_json: bool) -> None:
    if as_json:
        plain: dict[str, Any] = asdict(report)
        for line, stream in zip(plain["streams"], report.streams, strict=True):
            line["tag"] = _name(stream)
        print_json(plain)
        return
    aside = sum(bool(stream.reason) for stream in report.streams)
    facts = {
        "budget": human_bytes(report.budget),
        "claimed by slabs": human_bytes(report.reserved),
        "streams": f"{len(report.streams)}, {aside} of them damaged",
        "damaged entries of the slab map": str(report.damaged_units),
    }
    out.print(facts_table(report.path, facts.items()))
    if report.streams:
        out.print(_table(report.streams))


def _table(streams: list[StreamReport]) -> Table:
    table = Table(title="streams", title_justify="left", title_style="bold")
    table.add_column("tag", overflow="fold")
    for name in ("tokens", "layers", "memory", "generation"):
        table.add_column(name, justify="right")
    table.add_column("state", overflow="fold")
    for stream in streams:
        state = stream.reason or ("sealed" if stream.sealed else "sound")
        numbers = (stream.length, stream.layers, human_bytes(stream.bytes), stream.generation)
        table.add_row(Text(_name(stream)), *map(str, numbers), Text(state))
    return table


def _name(stream: StreamReport) -> str:
    """The handle of a server's stream, else the tag as text."""
    text = stream.tag.decode("utf-8", "backslashreplace")
    try:
        plain: Any = json.loads(text)
        return str(plain["handle"])
    except (ValueError, LookupError, TypeError):
        return text
