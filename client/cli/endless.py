"""``rondel endless``: a text of any length as one stream, beside the same model run on its last tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from rondel.client.cli.output import facts_table, human_bytes, out, print_json, progress
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.text_file import read_text
from rondel.client.cli.usage import check_cache, wrong_usage
from rondel.decoder.lm.registry import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from rondel.decoder.lm.segments import Endless, Footprint, Segment

_COLUMNS: Final = (
    ("positions", "positions", str),
    ("samples", "samples", "{:,}".format),
    ("perplexity", "ppl_stream", "{:.3f}".format),
    ("recomputed", "ppl_recomputed", "{:.3f}".format),
    ("ratio", "ppl_ratio", "{:.4f}".format),
    ("no sinks", "ppl_ratio_no_sinks", "{:.4f}".format),
)
"""What is shown of a segment: as which column, under which name in the JSON, and how written."""


def endless(
    text: Annotated[Path, typer.Option(help="A UTF-8 file of plain text.")],
    model: Annotated[str, typer.Option(help="A known model, or the path of a GGUF file.")] = DEFAULT_MODEL,
    window: Annotated[int, typer.Option(min=1, help="Tokens that a query sees, itself included.")] = 1020,
    sinks: Annotated[int, typer.Option(min=0, help="First tokens that every query sees as well.")] = 4,
    segment: Annotated[int, typer.Option(min=1, help="Tokens per row of the table.")] = 4096,
    samples: Annotated[int, typer.Option(min=1, help="Positions sampled in each segment.")] = 64,
    tokens: Annotated[
        int | None, typer.Option(min=2, help="How much of the text, from its start; all of it by default.")
    ] = None,
    storage: Annotated[str, typer.Option(help="How keys and values are stored: int8 or float32.")] = "int8",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the line of JSON only, without the table.")
    ] = False,
) -> None:
    """Run a whole text as one stream with a window and sinks, and compare it with recomputation.

    At sampled positions the perplexity of the next token is put beside that of the same model run on the last
    window + sinks tokens from scratch; ratio is the stream's over that, "no sinks" the same for a stream
    without sinks whose window is as large. Also measured: memory when the ring has gone round once and at the
    end, and the time per token at the end beside that of a stream which has just gone round, the two taking
    turns. Prints a table, then one line of JSON.
    """
    content = read_text(text)
    with wrong_usage():
        check_cache(window, sinks, 0, storage)
    with nothing_to_undo():
        from rondel.client.cli.places import ARENA_BYTES
        from rondel.decoder import machine
        from rondel.decoder.cache.arena import Arena
        from rondel.decoder.lm.endless import measure, stream_of
        from rondel.decoder.lm.forward import LanguageModel
        from rondel.decoder.lm.segments import Footprint
        from rondel.decoder.session import DecoderSession
        from rondel.decoder.spec import StreamSpec
    with progress("loading the model") as report:
        loaded = LanguageModel.load(resolve(model), progress=report)
    ids = stream_of(loaded.tokenizer, content, tokens=tokens)
    arena = Arena(budget=ARENA_BYTES)
    opened: list[DecoderSession] = []

    def open_stream(spec: StreamSpec) -> DecoderSession:
        opened[:] = [session for session in opened if not session.closed]
        opened.append(DecoderSession(spec, arena))
        return opened[-1]

    def weigh(stream: object) -> Footprint:
        (session,) = (each for each in opened if each is stream)
        return Footprint(session.stats().bytes_resident, machine.resident())

    with progress("running the stream and recomputing") as report:
        measured = measure(
            loaded,
            ids,
            open_stream,
            weigh,
            window=window,
            sinks=sinks,
            segment=segment,
            samples=samples,
            storage=storage,
            progress=report,
        )
    if not as_json:
        title = f"{model}, {len(ids):,} tokens of {text.name}, window {window:,} + {sinks} sinks, {storage}"
        out.print(_table(title, measured))
        out.print(_sizes(measured))
    print_json(_facts(measured))


def _row(segment: Segment) -> dict[str, Any]:
    own = {name: getattr(segment, name) for _, name, _ in _COLUMNS if name not in ("positions", "samples")}
    size = {"start": segment.start, "stop": segment.stop, "samples": len(segment.positions)}
    return size | own | {"ppl_no_sinks": segment.ppl_no_sinks}


def _memory(footprint: Footprint | None) -> dict[str, int | None] | None:
    if footprint is None:
        return None
    return {"resident_bytes": footprint.resident, "rss_bytes": footprint.process}


def _facts(measured: Endless) -> dict[str, Any]:
    whole = _row(measured.whole)
    return {
        "tokens": measured.tokens,
        "window": measured.window,
        "sinks": measured.sinks,
        "storage": measured.storage,
        **{name: fact for name, fact in whole.items() if name not in ("start", "stop")},
        "segments": [_row(each) for each in measured.segments],
        "resident_bytes": measured.ended.resident,
        "rss_bytes": measured.ended.process,
        "at_first_wrap": _memory(measured.wrapped),
        "token_seconds_fresh": measured.fresh_seconds,
        "token_seconds": measured.long_seconds,
        "token_time_ratio": measured.token_time_ratio,
    }


def _table(title: str, measured: Endless) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading, _, _ in _COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in measured.segments:
        positions = f"{each.start:,} to {each.stop - 1:,}"
        table.add_row(*_cells(_row(each) | {"positions": positions}))
    table.add_section()
    table.add_row(*_cells(_row(measured.whole) | {"positions": "all"}), style="bold")
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    return [written(row[name]) for _, name, written in _COLUMNS]


def _sizes(measured: Endless) -> Table:
    def told(footprint: Footprint | None) -> str:
        if footprint is None:
            return "the ring did not go round"
        process = "unknown" if footprint.process is None else human_bytes(footprint.process)
        return f"stream {human_bytes(footprint.resident)}, process {process}"

    fresh, late = (1000 * seconds for seconds in (measured.fresh_seconds, measured.long_seconds))
    return facts_table(
        "memory and time",
        [
            ("after the first round", told(measured.wrapped)),
            ("with all tokens", told(measured.ended)),
            ("a token, fresh / long", f"{fresh:.2f} / {late:.2f} ms, ratio {measured.token_time_ratio:.3f}"),
        ],
    )
