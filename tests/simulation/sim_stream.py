"""A client's view of one stream, and its twin: a session that is given each token once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sim_properties import hold

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import from_tensor, to_tensor

Floats = NDArray[np.float32]

_POOL = np.random.default_rng(7).standard_normal((4096, 1, 8)).astype(np.float32)
"""Token n is row n and those after it."""

SPECS = (
    StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, max_length=96),
    StreamSpec.uniform(layers=2, query_heads=1, kv_heads=1, head_dim=8, max_length=96),
    StreamSpec.uniform(layers=2, query_heads=1, kv_heads=1, head_dim=8, window=8, reserve=8),
)


def rows(tokens: list[int], shift: int = 0) -> Floats:
    """[n, 1, 8]: keys; with a shift values or queries."""
    return _POOL[[(token * 13 + shift) % len(_POOL) for token in tokens]]


class Known:
    """What a client knows of its stream. ``arena`` is the twin's."""

    def __init__(
        self, reply: pb.OpenStreamResponse, spec: StreamSpec, twin: DecoderSession, tokens: list[int]
    ) -> None:
        self.ref = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)
        self.spec = spec
        self.generation = reply.generation
        self.tokens = list(tokens)
        """Those that all layers have, as far as is known."""
        self.committed = reply.committed_length
        """The most that any answer has promised."""
        self.twin = twin

    @classmethod
    def opened(cls, reply: pb.OpenStreamResponse, spec: StreamSpec, arena: Arena) -> Known:
        """A stream that is new."""
        return cls(reply, spec, DecoderSession(spec, arena), [])

    def forked(self, reply: pb.OpenStreamResponse) -> Known:
        """One that begins as this one is."""
        return Known(reply, self.spec, self.twin.fork(), self.tokens)

    def told(self, committed: int) -> None:
        """An answer has promised a length."""
        self.committed = max(self.committed, committed)

    def item(self, tokens: list[int]) -> pb.StepItem:
        """A step of new tokens."""
        q, k, v = (to_tensor(rows(tokens, shift)) for shift in (2, 0, 1))
        return pb.StepItem(
            stream=self.ref,
            generation=self.generation,
            position=len(self.tokens),
            q=q,
            k=k,
            v=v,
            return_lse=True,
        )

    def stepped(self, layer: int, tokens: list[int], result: pb.StepResult) -> None:
        """The answer to it."""
        out, lse = self.twin.step(layer, rows(tokens, 2), rows(tokens), rows(tokens, 1), return_lse=True)
        self.same("a step", from_tensor(result.out, name="out"), out)
        self.same("a step", from_tensor(result.lse, name="lse"), lse)
        self.told(result.committed_length)

    def append(self, tokens: list[int]) -> pb.AppendTokenRequest:
        """All layers of new tokens."""
        k, v = self._stacks(tokens)
        return pb.AppendTokenRequest(
            stream=self.ref,
            generation=self.generation,
            position=len(self.tokens),
            k=to_tensor(k),
            v=to_tensor(v),
        )

    def appended(self, tokens: list[int]) -> None:
        """It was answered, or is known to be stored."""
        for layer in range(self.spec.layers):
            if self.twin.layer_length(layer) == len(self.tokens):
                self.twin.append(layer, rows(tokens), rows(tokens, 1))
        self.tokens += tokens

    def attend(self, queries: list[int], layer: int) -> pb.AttendRequest:
        """Query rows at the end."""
        return pb.AttendRequest(
            stream=self.ref,
            generation=self.generation,
            layer=layer,
            position=len(self.tokens) - len(queries),
            q=to_tensor(rows(queries, 3)),
        )

    def attended(self, queries: list[int], layer: int, reply: pb.AttendResponse) -> None:
        """The answer to it."""
        position = len(self.tokens) - len(queries)
        out = self.twin.attend(layer, rows(queries, 3), position=position)
        self.same("an attend", from_tensor(reply.out, name="out"), out)

    def cut(self, length: int) -> None:
        """Only so many tokens are left."""
        del self.tokens[length:]
        self.twin.truncate(length)
        self.committed = length

    def resumed(self, reply: pb.OpenStreamResponse, pending: list[int]) -> int:
        """The stream was taken over; how many of the pending tokens are stored."""
        length, known = reply.committed_length, len(self.tokens)
        least = max(self.committed, known)
        hold("acknowledged", length >= least, f"{length} tokens when taken over, {least} were promised")
        most = known + len(pending)
        hold("exactly-once", length <= most, f"{length} tokens when taken over, {most} were sent")
        hold("exactly-once", set(reply.layer_lengths) == {length}, f"{reply.layer_lengths} when taken over")
        self.generation = reply.generation
        self.told(length)
        stored = pending[: length - known]
        for token in stored:
            self.appended([token])
        self.twin.truncate(length)
        return len(stored)

    def restarted(self, reply: pb.GetStreamResponse, pending: list[int]) -> bool:
        """The server has begun anew, and says what it has. Whether the pending tokens are all there."""
        length, known = reply.committed_length, len(self.tokens)
        hold(
            "acknowledged",
            length >= self.committed,
            f"{length} tokens after a restart, {self.committed} were promised",
        )
        hold(
            "exactly-once",
            length in (known, known + len(pending)),
            f"{length} tokens, sent were {known} and {pending}",
        )
        hold("exactly-once", set(reply.layer_lengths) == {length}, f"{reply.layer_lengths} after a restart")
        self.generation = reply.generation
        self.told(length)
        if length == known:
            self.twin.truncate(known)
            return not pending
        self.appended(pending)
        return True

    def check(self, session: DecoderSession) -> None:
        """Whether the server has what was sent, each token once."""
        for layer in range(self.spec.layers):
            length = session.layer_length(layer)
            hold(
                "exactly-once",
                length == len(self.tokens),
                f"layer {layer} has {length} of {len(self.tokens)} tokens",
            )
            start = 0 if self.spec.groups[0].window is None else max(0, length - 8)
            tokens = self.tokens[start:]
            same = session.matches(layer, start, rows(tokens), rows(tokens, 1))
            hold("exactly-once", same, f"layer {layer} has other tokens than were sent")

    def same(self, what: str, got: Floats, wanted: Floats) -> None:
        """Raises unless an answer is what the twin says."""
        hold(
            "same-answer",
            np.array_equal(got, wanted),
            f"{what} of {self.ref.handle} at {len(self.tokens)} tokens",
        )

    def _stacks(self, tokens: list[int]) -> tuple[Floats, Floats]:
        k, v = rows(tokens), rows(tokens, 1)
        return np.stack([k] * self.spec.layers), np.stack([v] * self.spec.layers)
