"""``rondel generate``: text as it comes; the model here or on a server, and so the attention."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rondel.client.cli.access import Access, with_access
from rondel.client.cli.output import print_json, stream_text
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import WrongUsage, check_cache, wrong_usage
from rondel.decoder.lm.registry import DEFAULT_MODEL
from rondel.decoder.lm.strings import check_text
from rondel.decoder.spec import STORAGE_TYPES

if TYPE_CHECKING:
    from rondel.client.cli.places import Piece

_CACHE: Final = "Cache"
_SAMPLING: Final = "Sampling"
_PLACE: Final = "Where it runs"


@with_access
def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")],
    model: Annotated[
        str | None,
        typer.Option(
            help=f"A known model, or the path of a GGUF file; {DEFAULT_MODEL}, or the server's own first one."
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to make.")] = 256,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the model's chat template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON instead.")] = False,
    temperature: Annotated[
        float, typer.Option(help="0 = always the likeliest token.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Share of probability to choose from.", rich_help_panel=_SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Number of tokens to choose from; 0 = all.", rich_help_panel=_SAMPLING)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Fixes the random choices.", rich_help_panel=_SAMPLING)] = 0,
    window: Annotated[
        int | None, typer.Option(help="Tokens that a query sees; all when not given.", rich_help_panel=_CACHE)
    ] = None,
    sinks: Annotated[
        int, typer.Option(help="First tokens, always seen. Needs --window.", rich_help_panel=_CACHE)
    ] = 0,
    reserve: Annotated[
        int,
        typer.Option(
            help="One less than the largest chunk in which a wrapped prompt is read. Needs --window.",
            rich_help_panel=_CACHE,
        ),
    ] = 0,
    storage: Annotated[
        str,
        typer.Option(help=f"{' or '.join(STORAGE_TYPES)}.", rich_help_panel=_CACHE),
    ] = STORAGE_TYPES[0],
    server: Annotated[
        str | None,
        typer.Option(
            help="host:port or unix:/path of a server that is to do it; in this process when not given.",
            rich_help_panel=_PLACE,
        ),
    ] = None,
    remote_attention: Annotated[
        bool,
        typer.Option(
            "--remote-attention",
            help="Weights here, attention on --server, or on one started for it: a call per layer.",
            rich_help_panel=_PLACE,
        ),
    ] = False,
    *,
    access: Access,
) -> None:
    """Let a language model answer a prompt."""
    with wrong_usage():
        check_cache(window, sinks, reserve, storage)
    with nothing_to_undo():
        from rondel.client.access import Access as CheckedAccess
        from rondel.client.checks import checked_target
        from rondel.client.cli import places
        from rondel.client.generation import GenerateOptions
    text = sys.stdin.read() if prompt == "-" else prompt
    options = GenerateOptions(
        model=model or "",
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        window=window,
        sinks=sinks,
        reserve=reserve,
        storage=storage,
    )
    # Whatever can be known to be wrong is said before a model is read or a server asked.
    with wrong_usage():
        check_text(text)
        places.sampling_of(options)
        if server is not None:
            CheckedAccess.checked(checked_target(server), **access)
    if raw and not text:
        raise WrongUsage("the prompt is empty, expected a text to continue")
    asked: places.Asked = text if raw else [("user", text)]
    if remote_attention:
        pieces = places.with_remote_attention(asked, options, server, access)
    elif server is not None:
        pieces = places.on_server(asked, options, server, access)
    else:
        pieces = places.in_process(asked, options)
    _show(text, pieces, as_json)


def _show(prompt: str, pieces: Generator[Piece], as_json: bool) -> None:
    began = time.perf_counter()
    shown: list[str] = []
    tokens: list[int] = []
    finish_reason = None
    with closing(pieces):  # at once, also after Ctrl-C: a server or a stream hangs on it
        for piece in pieces:
            shown.append(piece.text)
            finish_reason = piece.finish_reason
            if piece.token is not None:
                tokens.append(piece.token)
            if not as_json:
                stream_text(piece.text)
    if not as_json:
        stream_text("\n")
        return
    print_json(
        {
            "prompt": prompt,
            "text": "".join(shown),
            "tokens": tokens,
            "finish_reason": finish_reason,
            "seconds": time.perf_counter() - began,
        }
    )
