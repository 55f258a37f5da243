"""``rondel generate``: text as it comes; the model here or on a server, and so the attention."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rondel.client.cli.launch import server as new_server
from rondel.client.cli.output import print_json, progress, stream_text
from rondel.client.generation import GenerateOptions, Summary, Token
from rondel.client.sync import AttentionClient, GenerationClient
from rondel.decoder.lm.registry import DEFAULT_MODEL, resolve
from rondel.decoder.spec import STORAGE_TYPES, StreamSpec

ARENA_BYTES: Final = 4 << 30
"""Bound on the caches of one generation in this process; pages are taken only as they are needed."""

_CACHE: Final = "Cache"
_SAMPLING: Final = "Sampling"
_PLACE: Final = "Where it runs"


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of the answer: a token, and the text that can be shown now."""

    token: int | None
    """None = only text that was held back."""
    text: str
    finish_reason: str | None = None
    """Set on the last: ``end_of_text``, ``max_tokens`` or ``context_full``."""


Asked = str | list[tuple[str, str]]
"""Text to continue as it is, or a conversation for the chat template."""

if TYPE_CHECKING:
    from rondel.decoder.lm.engine import AttentionStream

    OpenStream = Callable[[StreamSpec], AbstractContextManager[AttentionStream]]


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
) -> None:
    """Let a language model answer a prompt."""
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
    asked: Asked = text if raw else [("user", text)]
    if remote_attention:
        pieces = _with_remote_attention(asked, options, server)
    elif server is not None:
        pieces = _on_server(asked, options, server)
    else:
        pieces = _in_process(asked, options)
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


def _on_server(prompt: Asked, options: GenerateOptions, address: str) -> Generator[Piece]:
    with GenerationClient(address) as client, client.generate(prompt, **options) as generation:
        for event in generation:
            match event:
                case Token():
                    yield Piece(event.id, event.text)
                case Summary():
                    yield Piece(None, event.text, event.finish_reason)


def _with_model(prompt: Asked, options: GenerateOptions, open_stream: OpenStream) -> Generator[Piece]:
    """The model in this process; ``open_stream`` says where its attention is."""
    # Here, because it takes a while to load and only this needs it.
    from rondel.decoder.lm.engine import generate as run
    from rondel.decoder.lm.forward import LanguageModel
    from rondel.decoder.lm.sampling import Sampling

    sampling = Sampling(
        temperature=options["temperature"],
        top_p=options["top_p"],
        top_k=options["top_k"],
        seed=options["seed"],
    )
    with progress("loading the model") as report:
        model = LanguageModel.load(resolve(options["model"] or DEFAULT_MODEL), progress=report)
    tokenizer, most = model.tokenizer, options["max_tokens"]
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    else:
        ids = tokenizer.chat([{"role": role, "content": content} for role, content in prompt])
    spec = model.spec(
        window=options["window"],
        sinks=options["sinks"],
        reserve=options["reserve"],
        storage=options["storage"],
        max_length=min(model.context_length, len(ids) + most),
    )
    with open_stream(spec) as stream:
        for token in run(model, stream, ids, sampling, most):
            reason: str | None = token.finish_reason
            if reason == "stop":
                reason = "end_of_text"
            elif reason == "length":
                reason = "max_tokens" if token.index + 1 == most else "context_full"
            yield Piece(token.id, token.text, reason)


def _in_process(prompt: Asked, options: GenerateOptions) -> Generator[Piece]:
    from rondel.decoder.cache.arena import Arena
    from rondel.decoder.session import DecoderSession

    yield from _with_model(prompt, options, lambda spec: DecoderSession(spec, Arena(budget=ARENA_BYTES)))


def _with_remote_attention(prompt: Asked, options: GenerateOptions, address: str | None) -> Generator[Piece]:
    with ExitStack() as stack:
        if address is None:
            address = stack.enter_context(new_server()).address
        client = stack.enter_context(AttentionClient(address))
        yield from _with_model(prompt, options, client.open)
