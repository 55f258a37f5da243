"""A remote stream that goes on although its server was started anew, or its connection is another one."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from rondel.client import calls
from rondel.client.calls import Call, Detached, Method, Reply, Request, Steps, ask
from rondel.client.errors import item_error
from rondel.client.journal import Journal, Piece
from rondel.client.state import StreamState
from rondel.decoder.errors import StaleGeneration
from rondel.v1 import attention_pb2 as pb


class LastingStream(StreamState):
    """Makes calls that are about the stream; takes the stream over where that is what they need.

    A server's start on an arena's file, and an attach, put a stream into a new generation and take from it
    what not all layers have. So what was stored and is not committed is kept, and stored again. That somebody
    else has attached is no reason: then the stream is his.
    """

    def __init__(
        self, reply: pb.OpenStreamResponse, max_message_bytes: int, journal: Journal | None = None
    ) -> None:
        super().__init__(reply, max_message_bytes)
        self._journal = Journal() if journal is None else journal
        self._missing: deque[Piece] = deque()
        """What must be stored before anything else: the stream was taken over and has lost it."""
        self._attaching: pb.AttachStreamRequest | None = None
        """An attach that was not answered."""

    def _ask(
        self,
        method: Method[Request, Reply],
        request: Request,
        check: Callable[[Reply], None] = lambda reply: None,
    ) -> Steps[Reply]:
        """One call. ``check`` raises what is wrong with a reply, where that is not the whole call's error."""
        deadline = None
        while True:
            call = Call(method, request, deadline)
            try:
                if self._missing:
                    yield from self.store_missing(deadline)
                stamp(request, self._generation)
                reply = cast(Reply, (yield call))
                check(reply)
                return reply
            except (StaleGeneration, Detached):
                deadline = call.deadline or deadline
                yield from self.take_over(deadline)

    def take_over(self, deadline: float | None) -> Steps[None]:
        """Attach to the stream after a call has failed with StaleGeneration or Detached.

        Raises:
            StaleGeneration: somebody else has taken the stream over, or has changed it.
            RondelError: whatever the call fails with. The next one begins here again.
        """
        if self._attaching is None:
            self._attaching = pb.AttachStreamRequest(
                stream=self._ref, request_id=request_id(), generation=self._generation
            )
        try:
            reply = yield from ask(calls.ATTACH, self._attaching, deadline)
        except StaleGeneration:
            self._attaching = None
            raise
        self._attaching = None
        self._attached(reply.stream)

    def _attached(self, reply: pb.OpenStreamResponse) -> None:
        committed, truncating = reply.committed_length, self._truncating
        promised = self._length if truncating is None else min(self._length, truncating.length)
        if committed < promised:
            raise StaleGeneration(
                f"the stream has {committed} tokens, {promised} were there: somebody else has changed it",
                current=reply.generation,
            )
        self._generation = reply.generation
        self._length = min(self._length, committed)
        self._missing = deque(self._journal.after(committed))
        reached = {
            layer: piece.end
            for piece in self._missing
            for layer in range(piece.first, piece.first + piece.layers)
        }
        # Where the server has more, an answer was lost, and its call is made again.
        self._lengths = [
            min(length, reached.get(layer, committed)) for layer, length in enumerate(self._lengths)
        ]

    def store_missing(self, deadline: float | None) -> Steps[None]:
        """Store what an attach has taken. Raises whatever the calls fail with; what is left stays missing."""
        while self._missing:
            piece = self._missing[0]
            if piece.x is None:
                yield from ask(calls.APPEND, self._append_request(piece), deadline)
            else:
                item = pb.StepItem(
                    stream=self._ref, generation=self._generation, position=piece.position, embeddings=piece.x
                )
                request = pb.StepRequest(layer=piece.first, items=[item])
                check_items((yield from ask(calls.STEP, request, deadline)))
            self._missing.popleft()

    def _append_request(self, piece: Piece) -> pb.AppendTokenRequest:
        return pb.AppendTokenRequest(
            stream=self._ref,
            generation=self._generation,
            position=piece.position,
            first_layer=piece.first,
            k=piece.k,
            v=piece.v,
        )


def check_items(reply: pb.StepResponse) -> None:
    """Raises the error of an item that has one."""
    for result in reply.results:
        if result.status.code:
            raise item_error(result.status)


def stamp(request: Any, generation: int) -> None:
    """Have a request be about a generation."""
    for part in request.items if isinstance(request, pb.StepRequest) else (request,):
        part.generation = generation


def request_id() -> str:
    """A name for a request, so that its repetition is known as one."""
    return uuid.uuid4().hex
