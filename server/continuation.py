"""One generation: a prompt, a session of its own, and the tokens one after the other.

All methods but the constructor run on the generation worker, each for a fraction of a second, so that many
generations take turns there and a cancelled one ends soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, LengthExceeded
from rondel.decoder.lm.engine import Token, generate
from rondel.decoder.lm.forward import CHUNK, LanguageModel
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession
from rondel.server.models import Models
from rondel.v1 import generation_pb2 as pb
from rondel.v1.specs import spec_to_message, storage_from_message

DEFAULT_MAX_TOKENS: Final = 256

_ROLES: Final = {pb.ROLE_SYSTEM: "system", pb.ROLE_USER: "user", pb.ROLE_ASSISTANT: "assistant"}


class Continuation:
    """A Generate request at work: :meth:`begin`, :meth:`advance` until it has ended, :meth:`close`."""

    def __init__(self, request: pb.GenerateRequest, models: Models, arena: Arena, *, received: float) -> None:
        self.ended = False
        self._request = request
        self._models = models
        self._arena = arena
        self._received = received
        self._closed = False

    def begin(self) -> pb.GenerateResponse:
        """Reads the request and sets memory aside.

        Raises:
            ModelNotFound, CorruptModel, UnsupportedModel: there is no model to use.
            InvalidSpec, InvalidRequest: an option or the prompt is impossible.
            LengthExceeded: the prompt is longer than the model's context.
            BudgetExceeded: there is no room.
        """
        self._began = time.monotonic()
        request = self._request
        model = self._model = self._models.get(request.model)
        self._sampling = Sampling(
            temperature=request.temperature,
            top_p=request.top_p if request.HasField("top_p") else 1.0,
            top_k=request.top_k,
            seed=request.seed,
        )
        self._rest: Sequence[int] = _prompt(request, model)
        self._prompt_tokens = len(self._rest)
        if self._prompt_tokens > model.context_length:
            raise LengthExceeded(
                f"the prompt has {self._prompt_tokens} tokens, the model's context is {model.context_length}",
                limit=model.context_length,
            )
        # The last token is never fed back, so it needs no place.
        room = model.context_length - self._prompt_tokens + 1
        self._wanted = request.max_tokens or DEFAULT_MAX_TOKENS
        self._max_tokens = min(self._wanted, room)
        spec = model.spec(
            window=request.window if request.HasField("window") else None,
            sinks=request.sinks,
            reserve=request.reserve,
            storage=storage_from_message(request.storage),
            max_length=self._prompt_tokens + self._max_tokens - 1,
        )
        self._session = DecoderSession(spec, self._arena)
        self._tokens = self._generate()
        started = pb.GenerateStarted(
            model=self._models.name,
            prompt_tokens=self._prompt_tokens,
            max_tokens=self._max_tokens,
            spec=spec_to_message(spec, in_force=True),
        )
        return pb.GenerateResponse(started=started)

    def advance(self) -> list[pb.GenerateResponse]:
        """The next events: none while the prompt is read, then a token, at last a token and the summary."""
        if self._closed:
            return []
        token = next(self._tokens)
        if token is None:
            return []
        if token.index == 0:
            self._first = time.monotonic()
        events = [
            pb.GenerateResponse(
                token=pb.GeneratedToken(
                    id=token.id, text=token.text, index=token.index, committed_length=self._session.length
                )
            )
        ]
        if token.finish_reason is not None:
            self.ended = True
            events.append(pb.GenerateResponse(summary=self._summary(token)))
        return events

    def close(self) -> None:
        """Gives the memory back, whether or not anything was begun."""
        self._closed = True
        session: DecoderSession | None = getattr(self, "_session", None)
        if session is not None:
            session.close()

    def _generate(self) -> Iterator[Token | None]:
        """None for each chunk of the prompt but the last; then the tokens.

        The chunks are those that ``generate`` itself would use, so that a token's bits are the same.
        """
        model, session = self._model, self._session
        ids = model.check(self._rest, session).tolist()
        while (chunk := next(session.chunks(len(ids), at_most=CHUNK))).stop < len(ids):
            model.forward(ids[chunk], session)
            ids = ids[chunk.stop :]
            yield None
        yield from generate(
            model, session, ids, self._sampling, self._max_tokens, stop=tuple(self._request.stop)
        )

    def _summary(self, last: Token) -> pb.GenerateSummary:
        stats = self._session.stats()
        return pb.GenerateSummary(
            finish_reason=self._finish_reason(last),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=last.index + 1,
            bytes_reserved=stats.bytes_reserved,
            bytes_resident=stats.bytes_resident,
            bits_per_value=stats.bits_per_value,
            tier=kernels.TIER,
            queue_seconds=self._began - self._received,
            prompt_seconds=self._first - self._began,
            decode_seconds=time.monotonic() - self._first,
        )

    def _finish_reason(self, last: Token) -> pb.FinishReason:
        if last.finish_reason == "stop":
            ended = last.id in self._model.tokenizer.end_ids
            return pb.FINISH_REASON_END_OF_TEXT if ended else pb.FINISH_REASON_STOP
        if last.index + 1 == self._wanted:
            return pb.FINISH_REASON_MAX_TOKENS
        return pb.FINISH_REASON_CONTEXT_FULL


def _prompt(request: pb.GenerateRequest, model: LanguageModel) -> Sequence[int]:
    """The prompt's tokens. Raises InvalidRequest when there are none."""
    match request.WhichOneof("prompt"):
        case "text":
            ids: Sequence[int] = model.tokenizer.encode(request.text)
        case "chat":
            ids = model.tokenizer.chat([_message(message) for message in request.chat.messages])
        case "tokens":
            ids = list(request.tokens.ids)
        case _:
            raise InvalidRequest("the prompt is missing", field="prompt")
    if not ids:
        raise InvalidRequest("the prompt has no tokens", field="prompt")
    return ids


def _message(message: pb.ChatMessage) -> dict[str, str]:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"a message's role must be set, got number {message.role}", field="role")
    return {"role": role, "content": message.content}
