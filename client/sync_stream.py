"""Streams of a remote server, for callers that wait. The asyncio twin is in aio_stream.py."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, overload

from rondel.client.core import StreamCore
from rondel.client.journal import Journal
from rondel.client.operations import pack
from rondel.client.running import Runner
from rondel.client.sync_transfers import ExportedStream
from rondel.client.values import Array, Options, StreamStats
from rondel.decoder.errors import RondelError
from rondel.decoder.explanation import Explanation
from rondel.v1 import attention_pb2 as pb


class Stream(ExportedStream):
    """A stream of a remote server. Made by ``open`` and ``attach``; offers what a DecoderSession does.

    Every call may raise the errors of the session's call of that name, and ServerUnavailable,
    DeadlineExpired, Overloaded or Draining. After any of them the call may simply be made again.
    """

    def __init__(
        self,
        channel: Runner,
        reply: pb.OpenStreamResponse,
        opened: dict[str, StreamCore],
        max_message_bytes: int,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(reply, opened, max_message_bytes, journal)
        self._channel = channel

    def append(self, layer: int, k: Array, v: Array) -> int:
        """Store k [n, Hkv, Dk] and v [n, Hkv, Dv]; the layer's new length."""
        return self._channel.run(self._append(layer, k, v))

    def append_all(self, k: Array, v: Array) -> int:
        """Store k [layers, n, Hkv, Dk] and v [layers, n, Hkv, Dv]; the stream's new length."""
        return self._channel.run(self._append_all(k, v))

    @overload
    def attend(
        self, layer: int, q: Array, *, position: int | None = ..., options: Options = ...
    ) -> Array: ...
    @overload
    def attend(
        self,
        layer: int,
        q: Array,
        *,
        position: int | None = ...,
        options: Options = ...,
        return_lse: Literal[True],
    ) -> tuple[Array, Array]: ...
    def attend(
        self,
        layer: int,
        q: Array,
        *,
        position: int | None = None,
        options: Options = None,
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attend from q [N, Hq, Dk], its first row at ``position``; out [N, Hq, Dv], and lse [N, Hq]."""
        return pack(self._channel.run(self._attend(layer, q, position, options, return_lse)))

    def explain(
        self, layer: int, q: Array, *, position: int | None = None, options: Options = None
    ) -> Explanation:
        """What ``attend`` does, stage by stage. The server looks at no more than 2**20 scores in a call, and
        its answer must be within the message limits."""
        return self._channel.run(self._explain(layer, q, position, options))

    @overload
    def step(self, layer: int, q: Array, k: Array, v: Array, *, options: Options = ...) -> Array: ...
    @overload
    def step(
        self, layer: int, q: Array, k: Array, v: Array, *, options: Options = ..., return_lse: Literal[True]
    ) -> tuple[Array, Array]: ...
    def step(
        self, layer: int, q: Array, k: Array, v: Array, *, options: Options = None, return_lse: bool = False
    ) -> Array | tuple[Array, Array]:
        """Store k and v, and attend from q at the same positions, in one call."""
        return pack(self._channel.run(self._step(layer, q, k, v, options, return_lse)))

    def step_embeddings(self, layer: int, x: Array, *, options: Options = None) -> Array:
        """``step`` of what the stream's projection of the layer makes of x [n, d_model]; [n, Hq, Dv]."""
        return self._channel.run(self._step_embeddings(layer, x, options))

    def step_all(self, q: Array, k: Array, v: Array, *, options: Options = None) -> Array:
        """``step`` for all layers: q, k, v [layers, n, heads, dim]; one call per layer and chunk."""
        return self._channel.run(self._step_all(q, k, v, options))

    def fork(self, *, max_new_tokens: int | None = None, prefix_name: str = "") -> Stream:
        """A stream that begins as this one is: see ``DecoderSession.fork``. With ``prefix_name`` it takes no
        tokens, but ``open`` may begin with it until it is closed, which this client's end does not do."""
        reply = self._channel.run(self._fork(max_new_tokens, prefix_name))
        opened = {} if prefix_name else self._opened
        return Stream(self._channel, reply, opened, self._max_message_bytes, self._journal.copy())

    def truncate(self, length: int) -> None:
        """Take tokens off the end. Raises RollbackTooDeep, SequenceGap, StaleGeneration."""
        self._channel.run(self._truncate(length))

    def seal(self) -> None:
        """Let nothing change the stream from now on. Raises SequenceGap, StaleGeneration."""
        self._channel.run(self._seal())

    def stats(self, *, quality: bool = False) -> StreamStats:
        """What the stream holds on the server; with ``quality`` also what int8 storage makes of its keys."""
        return self._channel.run(self._stats(quality))

    def close(self) -> None:
        """End the stream and give its memory back. Closing again does nothing."""
        self._channel.run(self.close_steps())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(RondelError):  # the first error is the one to see
            self.close()
