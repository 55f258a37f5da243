"""Streams of a remote server without their input and output: requests built, replies read, lengths kept.

``Stream`` (sync.py) and ``AsyncStream`` (aio.py) are this plus a way to send. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from rondel.client import calls
from rondel.client.calls import Steps, ask
from rondel.client.checks import checked_array, checked_limit, checked_position, checked_text
from rondel.client.errors import item_error
from rondel.client.journal import Journal, Piece
from rondel.client.lasting import LastingStream, check_items, request_id
from rondel.client.limits import append_shape
from rondel.client.values import Array, StepOutcome, StreamStats, stats_of
from rondel.decoder.errors import (
    ChunkTooLong,
    ServerInternal,
    StaleGeneration,
    StreamClosed,
    StreamNotFound,
)
from rondel.decoder.explanation import Explanation
from rondel.decoder.options import AttendOptions, checked_options
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import explanation_from_message, options_to_message
from rondel.v1.options_pb2 import AttendOptions as AttendOptionsMessage
from rondel.v1.wire import from_tensor, to_tensor


class StreamCore(LastingStream):
    """What can be done with a remote stream, each as the steps of an operation."""

    def __init__(
        self,
        reply: pb.OpenStreamResponse,
        opened: dict[str, StreamCore],
        max_message_bytes: int,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(reply, max_message_bytes, journal)
        self._opened = opened
        opened[reply.handle] = self

    def _store(self, first: int, count: int, position: int, k: Array, v: Array) -> Steps[int]:
        """One AppendToken: k [layers, tokens, Hkv, Dk], v [layers, tokens, Hkv, Dv]."""
        piece = Piece(first, count, position, k.shape[1], to_tensor(k), to_tensor(v))
        reply = yield from self._ask(calls.APPEND, self._append_request(piece))
        self._lengths[first : first + count] = [reply.layer_length] * count
        self._length = reply.committed_length
        self._journal.note(piece, self._length)
        return reply.layer_length

    def _append(self, layer: int, k: Array, v: Array) -> Steps[int]:
        with self.alone():
            k, v = self._tokens(layer, k, v)
            self._unfinished = None
            return (yield from self._store(layer, 1, self.layer_length(layer), k[None], v[None]))

    def _append_all(self, k: Array, v: Array) -> Steps[int]:
        with self.alone():
            (k, v), layers = self._stacks(k=k, v=v), self._spec.layers
            run, most = append_shape(self._ref, layers, self._spec.group(0), self._max_message_bytes)
            tokens, start = k.shape[1], self._begin_whole()
            # The server takes any number of tokens for all layers; layers that go one after the other must
            # not run too far ahead.
            parts = _even_pieces(tokens, most) if run == layers else self._pieces(tokens, most, start)
            for part in parts:
                for first in range(0, layers, run):
                    rows = slice(first, min(layers, first + run))
                    at = start + part.start
                    yield from self._store(first, rows.stop - first, at, k[rows, part], v[rows, part])
            self._unfinished = None
            return self._length

    def _attend(
        self, layer: int, q: Array, position: int | None, options: AttendOptions | None, return_lse: bool
    ) -> Steps[tuple[Array, Array | None]]:
        with self.alone():
            request = self._question(layer, q, position, options)
            request.return_lse = bool(return_lse)
            reply = yield from self._ask(calls.ATTEND, request)
            lse = from_tensor(reply.lse, name="lse") if return_lse else None
            return from_tensor(reply.out, name="out"), lse

    def _explain(
        self, layer: int, q: Array, position: int | None, options: AttendOptions | None
    ) -> Steps[Explanation]:
        with self.alone():
            request = self._question(layer, q, position, options)
            request.explain = True
            reply = yield from self._ask(calls.ATTEND, request)
            return explanation_from_message(reply.explanation)

    def _question(
        self, layer: int, q: Array, position: int | None, options: AttendOptions | None
    ) -> pb.AttendRequest:
        group, held = self._spec.group(layer), self.layer_length(layer)
        q = checked_array("q", q, (None, group.query_heads, group.key_dim))
        return pb.AttendRequest(
            stream=self._ref,
            generation=self._generation,
            layer=layer,
            position=None if position is None else checked_position("position", position, held),
            q=to_tensor(q),
            options=_message(options),
        )

    def _step(
        self, layer: int, q: Array, k: Array, v: Array, options: AttendOptions | None, return_lse: bool
    ) -> Steps[tuple[Array, Array | None]]:
        with self.alone():
            item = self.item(layer, q, k, v, options, return_lse)
            return (yield from self._step_one(layer, item))

    def _step_embeddings(self, layer: int, x: Array, options: AttendOptions | None) -> Steps[Array]:
        with self.alone():
            item = self._item(layer, options, False, self.layer_length(layer))
            item.embeddings.CopyFrom(to_tensor(checked_array("x", x, (None, None))))
            self._unfinished = None
            return (yield from self._step_one(layer, item))[0]

    def _step_all(self, q: Array, k: Array, v: Array, options: AttendOptions | None) -> Steps[Array]:
        with self.alone():
            k, v, q = self._stacks(k=k, v=v, q=q)
            tokens, group = k.shape[1], self._spec.group(0)
            options = checked_options(options)
            if options is not None:
                options.check(group, tokens)
            out = np.empty((self._spec.layers, tokens, group.query_heads, group.value_dim), np.float32)
            start = self._begin_whole()
            for part in self._step_parts(tokens, start):
                of_part = None if options is None else options.of_rows(part)
                for layer in range(self._spec.layers):
                    rows = q[layer, part], k[layer, part], v[layer, part]
                    item = self._item_of(layer, *rows, of_part, False, start + part.start)
                    out[layer, part], _ = yield from self._step_one(layer, item)
            self._unfinished = None
            return out

    def _step_parts(self, tokens: int, start: int) -> Iterator[slice]:
        """Pieces of a step of all layers. Rows that see what comes after them need all of it at once."""
        if all(group.causal for group in self._spec.groups):
            return self.chunks(tokens, first=start)
        room = self._spec.room(start)
        if tokens > room:
            raise ChunkTooLong(
                f"rows that see what comes after them take at most {room} tokens at once, got {tokens}",
                limit=room,
            )
        return iter([slice(0, tokens)] if tokens else [])

    def _fork(self, max_new_tokens: int | None, prefix_name: str) -> Steps[pb.OpenStreamResponse]:
        with self.alone():
            request = pb.ForkStreamRequest(
                stream=self._ref,
                generation=self._generation,
                length=self._length,
                prefix_name=checked_text("prefix_name", prefix_name),
                max_new_tokens=checked_limit(max_new_tokens),
            )
            # As for a truncate: one that failed may have been carried out.
            if self._forking is not None:
                request.request_id = self._forking.request_id
            if self._forking != request:
                request.request_id = request_id()
                self._forking = request
            reply = yield from self._ask(calls.FORK, request)
            self._forking = None
            return reply.stream

    def _truncate(self, length: int) -> Steps[None]:
        with self.alone():
            length = checked_position("length", length, self._length)
            # One that failed may have been carried out: when it is made again it must be known as the same.
            if self._truncating is None or self._truncating.length != length:
                self._truncating = pb.TruncateStreamRequest(
                    stream=self._ref, generation=self._generation, length=length, request_id=request_id()
                )
            reply = yield from self._ask(calls.TRUNCATE, self._truncating)
            self._truncating = self._unfinished = None
            self._journal.clear()
            self._generation = reply.generation
            self._length = reply.committed_length
            self._lengths = [reply.committed_length] * self._spec.layers

    def _seal(self) -> Steps[None]:
        with self.alone():
            reply = yield from self._ask(calls.SEAL, pb.SealStreamRequest(stream=self._ref))
            self._length = reply.committed_length

    def _stats(self, quality: bool) -> Steps[StreamStats]:
        with self.alone():
            reply = yield from ask(calls.GET, pb.GetStreamRequest(stream=self._ref, quality=quality))
            return stats_of(reply)

    def leave_open(self) -> None:
        """From now on the client's ``close`` leaves this stream to others, and to its idle lease on the
        server. Its own ``close`` still ends it."""
        self._opened.pop(self.handle, None)

    def close_steps(self) -> Steps[None]:
        # Not `alone`: closing twice is fine, and closing must work while another call hangs.
        if self._closed:
            return
        if self._closing is None:  # one that failed may have been carried out: it keeps its name
            self._closing = pb.CloseStreamRequest(stream=self._ref, request_id=request_id())
        # A lease may have been faster, the server another one by now, or the stream somebody else's.
        with suppress(StreamNotFound, StreamClosed, StaleGeneration):
            try:
                yield from self._ask_to_close(self._closing)
            except StaleGeneration:  # or a call of its own, which goes on, has attached to it meanwhile
                yield from self._ask_to_close(self._closing)
        self._closed = True
        self._opened.pop(self.handle, None)

    def _ask_to_close(self, request: pb.CloseStreamRequest) -> Steps[pb.CloseStreamResponse]:
        request.generation = self._generation
        if self._truncating or self._attaching:  # which may have been carried out: then it is another one
            request.ClearField("generation")
        return (yield from ask(calls.CLOSE, request))

    def item(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        options: AttendOptions | None,
        return_lse: bool,
    ) -> pb.StepItem:
        item = self._item_of(layer, q, k, v, options, return_lse, self.layer_length(layer))
        self._unfinished = None
        return item

    def _item_of(
        self,
        layer: int,
        q: Array,
        k: Array,
        v: Array,
        options: AttendOptions | None,
        return_lse: bool,
        position: int,
    ) -> pb.StepItem:
        k, v = self._tokens(layer, k, v)
        group = self._spec.group(layer)
        q = checked_array("q", q, (len(k), group.query_heads, group.key_dim))
        item = self._item(layer, options, return_lse, position)
        for field, array in (("q", q), ("k", k), ("v", v)):
            getattr(item, field).CopyFrom(to_tensor(array))
        return item

    def _item(
        self, layer: int, options: AttendOptions | None, return_lse: bool, position: int
    ) -> pb.StepItem:
        return pb.StepItem(
            stream=self._ref,
            generation=self._generation,
            position=position,
            return_lse=bool(return_lse),
            options=_message(options),
        )

    def _step_one(self, layer: int, item: pb.StepItem) -> Steps[tuple[Array, Array | None]]:
        request = pb.StepRequest(layer=layer, items=[item])
        reply = yield from self._ask(calls.STEP, request, check_items)
        if len(reply.results) != 1:
            raise ServerInternal(f"the server answered {len(reply.results)} items of 1")
        outcome = self.outcome(layer, item, reply.results[0])
        if outcome.out is None:
            raise outcome.error or ServerInternal("a step has neither output nor error")
        return outcome.out, outcome.lse

    def outcome(self, layer: int, item: pb.StepItem, result: pb.StepResult) -> StepOutcome:
        if result.status.code:
            return StepOutcome(None, None, item_error(result.status))
        self._lengths[layer] = result.layer_length
        self._length = result.committed_length
        if result.layer_length > self._length:
            self._journal.note(Piece.of_step(layer, item), self._length)
        else:
            self._journal.settle(self._length)
        lse = from_tensor(result.lse, name="lse") if item.return_lse else None
        return StepOutcome(from_tensor(result.out, name="out"), lse, None)


def _message(options: AttendOptions | None) -> AttendOptionsMessage | None:
    options = checked_options(options)
    return None if options is None else options_to_message(options)


def _even_pieces(tokens: int, most: int) -> Iterator[slice]:
    for start in range(0, tokens, most):
        yield slice(start, min(tokens, start + most))
