"""Where ``rondel generate`` can run: here, on a server, or here with the attention on a server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from rondel.client.access import AccessOptions
from rondel.client.cli.launch import server as new_server
from rondel.client.cli.output import progress
from rondel.client.generation import GenerateOptions, Summary, Token
from rondel.client.sync import AttentionClient
from rondel.client.sync_generation import GenerationClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.lm.engine import AttentionStream
from rondel.decoder.lm.engine import generate as run
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.registry import DEFAULT_MODEL, resolve
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

ARENA_BYTES: Final = 4 << 30
"""Bound on the caches of one generation in this process; pages are taken only as they are needed."""

Asked = str | list[tuple[str, str]]
"""Text to continue as it is, or a conversation for the chat template."""

OpenStream = Callable[[StreamSpec], AbstractContextManager[AttentionStream]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of the answer: a token, and the text that can be shown now."""

    token: int | None
    """None = only text that was held back."""
    text: str
    finish_reason: str | None = None
    """Set on the last: ``end_of_text``, ``max_tokens`` or ``context_full``."""


def on_server(
    prompt: Asked, options: GenerateOptions, address: str, access: AccessOptions
) -> Generator[Piece]:
    """Model and attention on a server."""
    with GenerationClient(address, **access) as client, client.generate(prompt, **options) as generation:
        for event in generation:
            match event:
                case Token():
                    yield Piece(event.id, event.text)
                case Summary():
                    yield Piece(None, event.text, event.finish_reason)


def in_process(prompt: Asked, options: GenerateOptions) -> Generator[Piece]:
    """Model and attention here."""
    yield from _with_model(prompt, options, lambda spec: DecoderSession(spec, Arena(budget=ARENA_BYTES)))


def with_remote_attention(
    prompt: Asked, options: GenerateOptions, address: str | None, access: AccessOptions
) -> Generator[Piece]:
    """The model here, its attention on a server; None = on one that is started for it, which asks nobody who
    they are."""
    with ExitStack() as stack:
        if address is None:
            address, access = stack.enter_context(new_server()).address, AccessOptions()
        client = stack.enter_context(AttentionClient(address, **access))
        yield from _with_model(prompt, options, client.open)


def sampling_of(options: GenerateOptions) -> Sampling:
    """How tokens are chosen. Raises InvalidSpec."""
    return Sampling(
        temperature=options["temperature"],
        top_p=options["top_p"],
        top_k=options["top_k"],
        seed=options["seed"],
    )


def _with_model(prompt: Asked, options: GenerateOptions, open_stream: OpenStream) -> Generator[Piece]:
    """The model in this process; ``open_stream`` says where its attention is."""
    sampling = sampling_of(options)
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
