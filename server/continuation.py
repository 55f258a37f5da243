"""One generation: a prompt, a session of its own, and the tokens one after the other.

:meth:`advance` and :meth:`close` run on the generation worker, each for a fraction of a second, so that many
generations take turns there and a cancelled one ends soon.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rondel.decoder import kernels
from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena
from rondel.decoder.lm.engine import Token, generate
from rondel.decoder.lm.forward import CHUNK
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.lm.stops import StopTexts
from rondel.decoder.session import DecoderSession
from rondel.server.models import Models
from rondel.server.prompts import prompt_pieces
from rondel.v1 import generation_pb2 as pb
from rondel.v1.specs import spec_to_message, storage_from_message

DEFAULT_MAX_TOKENS: Final = 256
_TURN_SECONDS: Final = 0.02
"""Reading a prompt lets others have their turn after so long."""

Events = list[pb.GenerateResponse]


class Continuation:
    """A Generate request at work: :meth:`advance` until it has ended, then :meth:`close`."""

    def __init__(
        self,
        request: pb.GenerateRequest,
        models: Models,
        arena: Arena,
        account: Account,
        *,
        received: float,
    ) -> None:
        self.ended = False
        self._request = request
        self._models = models
        self._arena = arena
        self._account = account
        self._received = received
        self._session: DecoderSession | None = None
        self._closed = False
        self._events = self._run()

    @property
    def steps(self) -> int:
        """Tokens stored so far, each counted in every layer."""
        session = self._session
        return 0 if session is None else session.length * session.spec.layers

    def advance(self) -> Events:
        """The next events, perhaps none: `started` when memory is set aside, tokens, at last the summary.

        Raises (before `started`):
            ModelNotFound: there is no such model.
            InvalidSpec, InvalidRequest: an option or the prompt is impossible.
            LengthExceeded: the prompt is longer than the model's context.
            BudgetExceeded, QuotaExceeded: there is no room, or the account may not have so much.
        """
        return [] if self._closed else next(self._events)

    def close(self) -> None:
        """Gives the memory back, whether or not anything was begun."""
        self._closed = True
        if self._session is not None:
            self._session.close()

    def _run(self) -> Iterator[Events]:
        self._began = time.monotonic()
        request = self._request
        model = self._model = self._models.get(request.model)
        # Options come first: the prompt is the long part.
        sampling = Sampling(
            temperature=request.temperature,
            top_p=request.top_p if request.HasField("top_p") else 1.0,
            top_k=request.top_k,
            seed=request.seed,
        )
        StopTexts(request.stop)
        spec = model.spec(
            window=request.window if request.HasField("window") else None,
            sinks=request.sinks,
            reserve=request.reserve,
            storage=storage_from_message(request.storage),
        )
        prompt: list[int] = []
        turn = self._began
        for piece in prompt_pieces(request, model):
            prompt += piece
            if time.monotonic() - turn > _TURN_SECONDS:
                yield []
                turn = time.monotonic()
        self._prompt_tokens = len(prompt)
        self._wanted = request.max_tokens or DEFAULT_MAX_TOKENS
        # The last token is never fed back, so it needs no place.
        max_tokens = min(self._wanted, model.context_length - len(prompt) + 1)
        spec = replace(spec, max_length=len(prompt) + max_tokens - 1)
        session = self._session = DecoderSession(spec, self._arena, tag=None, account=self._account)
        started = pb.GenerateStarted(
            model=self._models.name,
            prompt_tokens=len(prompt),
            max_tokens=max_tokens,
            spec=spec_to_message(spec, in_force=True),
        )
        yield [pb.GenerateResponse(started=started)]
        for token in self._tokens(session, prompt, sampling, max_tokens):
            yield [] if token is None else self._token_events(session, token)

    def _tokens(
        self, session: DecoderSession, prompt: list[int], sampling: Sampling, max_tokens: int
    ) -> Iterator[Token | None]:
        """None for each chunk of the prompt but the last; then the tokens.

        The chunks are those that ``generate`` itself would use, so that a token's bits are the same.
        """
        model = self._model
        ids = model.check(prompt, session).tolist()
        while (chunk := next(session.chunks(len(ids), at_most=CHUNK))).stop < len(ids):
            model.forward(ids[chunk], session)
            ids = ids[chunk.stop :]
            yield None
        yield from generate(model, session, ids, sampling, max_tokens, stop=tuple(self._request.stop))

    def _token_events(self, session: DecoderSession, token: Token) -> Events:
        if token.index == 0:
            self._first = time.monotonic()
        made = pb.GeneratedToken(
            id=token.id, text=token.text, index=token.index, committed_length=session.length
        )
        events = [pb.GenerateResponse(token=made)]
        if token.finish_reason is not None:
            self.ended = True
            events.append(pb.GenerateResponse(summary=self._summary(session, token)))
        return events

    def _summary(self, session: DecoderSession, last: Token) -> pb.GenerateSummary:
        stats = session.stats()
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
