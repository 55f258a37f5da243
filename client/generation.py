"""Generations of a remote server without their input and output: the request built, the events read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from rondel.client import calls
from rondel.client.calls import Call, Steps, ask
from rondel.client.checks import checked_list, checked_texts
from rondel.decoder.errors import InvalidRequest, InvalidSpec, ServerInternal
from rondel.decoder.spec import StreamSpec
from rondel.v1 import generation_pb2 as pb
from rondel.v1.specs import spec_from_message, storage_to_message

Prompt = str | Sequence[int] | Sequence[tuple[str, str]]
"""Text continued as it is, token numbers, or a conversation of (role, content) pairs."""

ROLES: Final = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
}

FINISH_REASONS: Final = {
    pb.FINISH_REASON_END_OF_TEXT: "end_of_text",
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_MAX_TOKENS: "max_tokens",
    pb.FINISH_REASON_CONTEXT_FULL: "context_full",
}


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was accepted and memory set aside."""

    model: str
    prompt_tokens: int
    max_tokens: int
    spec: StreamSpec


@dataclass(frozen=True, slots=True)
class Token:
    """A token; ``text`` is what can be shown now and may be empty."""

    id: int
    text: str
    index: int
    committed_length: int


@dataclass(frozen=True, slots=True)
class Summary:
    """How the generation went. ``text`` was held back until now and ends the answer."""

    finish_reason: str
    """``end_of_text``, ``stop``, ``max_tokens`` or ``context_full``."""
    text: str
    prompt_tokens: int
    generated_tokens: int
    """One that ended the text included."""
    bytes_reserved: int
    bytes_resident: int
    bits_per_value: float
    tier: str
    queue_seconds: float
    prompt_seconds: float
    decode_seconds: float


Event = Started | Token | Summary


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the server; numbers are 0 and spec None until it is loaded."""

    name: str
    loaded: bool
    context_length: int
    vocabulary: int
    spec: StreamSpec | None


class GenerateOptions(TypedDict, total=False):
    """Options of a generation. What is left out is the server's choice, said in each line."""

    model: str
    """Name of the model; the server's first."""
    max_tokens: int
    """Largest number of tokens to make; 256."""
    temperature: float
    """Randomness from 0 to 100; 0 = always the likeliest token."""
    top_p: float
    """Choose among the likeliest tokens whose probabilities add up to this; 1."""
    top_k: int
    """Choose among so many of the likeliest tokens; 0 = all."""
    seed: int
    """Fixes the random choices; 0."""
    window: int | None
    """Positions that a query sees; None = all."""
    sinks: int
    """First positions, always seen; 0. Needs a window."""
    reserve: int
    """Larger lets a long prompt be read in larger chunks; 0. Needs a window."""
    storage: str
    """``int8`` or ``float32``; int8."""
    stop: Sequence[str]
    """Texts that end the generation and are not part of it; none."""


def generate_call(prompt: Prompt, options: GenerateOptions) -> Call:
    """The call for a generation. Raises InvalidSpec, InvalidRequest."""
    storage = options.get("storage", "int8")
    if not isinstance(storage, str):
        raise InvalidSpec(f"storage must be a text, got {type(storage).__name__}", field="storage")
    fields: dict[str, Any] = {**options, "storage": storage_to_message(storage)}
    if "stop" in fields:
        fields["stop"] = checked_texts("stop", fields["stop"])
    request = pb.GenerateRequest()
    for name, value in fields.items():
        # What a message's field cannot hold is refused here; what it can, by the server.
        with _sendable(name):
            request.MergeFrom(pb.GenerateRequest(**{name: value}))
    _set_prompt(request, prompt)
    return Call(calls.GENERATE, request)


@contextmanager
def _sendable(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{name} has a value that cannot be sent: {error}", field=name) from error


def _set_prompt(request: pb.GenerateRequest, prompt: object) -> None:
    if isinstance(prompt, str):
        with _sendable("prompt"):
            request.text = prompt
        return
    parts = checked_list("prompt", prompt)
    kinds = {isinstance(part, tuple | list) for part in parts}
    if len(kinds) > 1 or any(isinstance(part, str) or (kinds == {True} and len(part) != 2) for part in parts):
        raise InvalidRequest(
            "prompt must be a text, token numbers or (role, content) pairs, got a mixture or other pieces",
            field="prompt",
        )
    with _sendable("prompt"):
        if kinds == {True}:
            for role, content in parts:
                request.chat.messages.add(role=ROLES.get(role, pb.ROLE_UNSPECIFIED), content=content)
        else:
            request.tokens.ids.extend(parts)


def read_event(reply: pb.GenerateResponse) -> Event | None:
    """The event of a reply; None for a kind that only newer servers know."""
    kind = reply.WhichOneof("event")
    if kind == "started":
        started = reply.started
        return Started(
            model=started.model,
            prompt_tokens=started.prompt_tokens,
            max_tokens=started.max_tokens,
            spec=spec_from_message(started.spec),
        )
    if kind == "token":
        token = reply.token
        return Token(id=token.id, text=token.text, index=token.index, committed_length=token.committed_length)
    if kind == "summary":
        return _read_summary(reply.summary)
    return None


def _read_summary(summary: pb.GenerateSummary) -> Summary:
    reason = FINISH_REASONS.get(summary.finish_reason)
    if reason is None:
        raise ServerInternal(f"the server ended a generation for unknown reason {summary.finish_reason}")
    return Summary(
        finish_reason=reason,
        text=summary.text,
        prompt_tokens=summary.prompt_tokens,
        generated_tokens=summary.generated_tokens,
        bytes_reserved=summary.bytes_reserved,
        bytes_resident=summary.bytes_resident,
        bits_per_value=summary.bits_per_value,
        tier=summary.tier,
        queue_seconds=summary.queue_seconds,
        prompt_seconds=summary.prompt_seconds,
        decode_seconds=summary.decode_seconds,
    )


def list_models() -> Steps[list[Model]]:
    """Ask for the server's models."""
    reply = yield from ask(calls.MODELS, pb.ListModelsRequest())
    return [
        Model(
            name=model.name,
            loaded=model.loaded,
            context_length=model.context_length,
            vocabulary=model.vocabulary,
            spec=spec_from_message(model.spec) if model.HasField("spec") else None,
        )
        for model in reply.models
    ]
