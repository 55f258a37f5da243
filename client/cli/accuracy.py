"""``rondel accuracy``: what each cache storage type does to a real model's next-token distributions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from rondel.client.cli.output import out, print_json, print_note, progress
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.text_file import read_text
from rondel.client.cli.usage import WrongUsage
from rondel.decoder.lm.registry import DEFAULT_MODEL, resolve

if TYPE_CHECKING:
    from rondel.decoder.lm.accuracy import Accuracy

_ROWS: Final = (
    ("bits per value", "bits_per_value", "{:.3f}"),
    ("KL(float32 ‖ storage), mean, nats", "kl_mean", "{:.6f}"),
    ("KL, largest", "kl_max", "{:.4f}"),
    ("same likeliest token", "top1", "{:.2%}"),
    ("perplexity", "ppl", "{:.4f}"),
    ("perplexity, float32", "ppl_float32", "{:.4f}"),
    ("perplexity, difference", "ppl_delta", "{:+.3%}"),
    ("first divergence, median token", "first_divergence_median", "{:g}"),
    ("prompts continued", "prompts", "{:,}"),
    ("tokens predicted", "tokens", "{:,}"),
    ("seconds", "seconds", "{:.1f}"),
)
"""What is shown: as which row of the table, under which name in the JSON, and how written in the table."""


def accuracy(
    text: Annotated[Path, typer.Option(help="A UTF-8 file of plain text.")],
    model: Annotated[str, typer.Option(help="A known model, or the path of a GGUF file.")] = DEFAULT_MODEL,
    context: Annotated[int, typer.Option(min=2, help="Tokens of the text that are run at a time.")] = 1024,
    chunks: Annotated[int, typer.Option(min=1, help="How many such contexts, from the text's start.")] = 8,
    greedy_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens by which the first half of each context is continued.")
    ] = 256,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with the divergence by position and its distribution (needs plotly)."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the line of JSON only, without the table.")
    ] = False,
) -> None:
    """Compare each cache storage type with float32 storage, on a text.

    The text is cut into contexts of equal length, and the distributions that predict the second half of each
    are compared: kl is KL(float32 ‖ storage) in nats, top1 the share with the same likeliest token, ppl the
    perplexity, ppl_delta its relative difference, ppl / ppl_float32 - 1. The first half of each context is
    also continued greedily: first_divergence is the index of the first token that differs, or
    --greedy-tokens when none does. Prints a table, then one line of JSON.
    """
    content = read_text(text)
    if plot is not None:
        _check_plot(plot)
    with nothing_to_undo():
        from rondel.client.cli.places import ARENA_BYTES
        from rondel.decoder.cache.arena import Arena
        from rondel.decoder.lm.comparison import contexts, measure
        from rondel.decoder.lm.forward import LanguageModel
        from rondel.decoder.session import DecoderSession
        from rondel.decoder.spec import StreamSpec
    with progress("loading the model") as report:
        loaded = LanguageModel.load(resolve(model), progress=report)
    texts = contexts(loaded.tokenizer, content, context=context, chunks=chunks)
    arena, bits = Arena(budget=ARENA_BYTES), dict[str, float]()

    def open_stream(spec: StreamSpec) -> DecoderSession:
        session = DecoderSession(spec, arena)
        bits[spec.groups[0].storage] = session.stats().bits_per_value
        return session

    with progress("comparing") as report:
        measured = measure(loaded, texts, open_stream, greedy_tokens=greedy_tokens, progress=report)
    results = {each.storage: _facts(each, bits[each.storage]) for each in measured}
    title = f"{model}, {chunks} × {context} tokens of {text.name}"
    if not as_json:
        out.print(_table(title, results))
    print_json(results)
    # Last, so that a full disk takes the picture only.
    if plot is not None:
        from rondel.client.cli.accuracy_plot import write

        write(plot, title, measured)
        print_note(f"the plot is in {plot}")


def _check_plot(path: Path) -> None:
    """Whether a plot can be made and will have a place: asked before minutes of work, not after."""
    if path.is_dir() or not path.parent.is_dir():
        raise WrongUsage(f"--plot must be a file in a folder that is there, got {path}")
    try:
        with nothing_to_undo():
            import plotly.io  # noqa: F401
    except ImportError:
        raise WrongUsage("--plot needs plotly, which is not installed here: pip install plotly") from None


def _facts(measured: Accuracy, bits_per_value: float) -> dict[str, Any]:
    own = {column: getattr(measured, column) for _, column, _ in _ROWS if column != "bits_per_value"}
    return own | {"bits_per_value": bits_per_value}


def _table(title: str, results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for storage in results:
        table.add_column(storage, justify="right")
    for name, column, form in _ROWS:
        table.add_row(name, *(form.format(facts[column]) for facts in results.values()))
    return table
