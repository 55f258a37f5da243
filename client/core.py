"""Streams of a remote server without their input and output: requests built, replies read, lengths kept.

``Stream`` (sync.py) and ``AsyncStream`` (aio.py) are this plus a way to send. Nothing here waits.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rondel.client import calls
from rondel.client.calls import Steps, ask
from rondel.client.checks import checked_array, checked_count, checked_position
from rondel.client.errors import item_error
from rondel.client.limits import append_shape, step_tokens
from rondel.client.values import Array, StepOutcome, StreamStats, stats_of
from rondel.decoder.errors import (
    InvalidShape,
    ServerInternal,
    SessionBusy,
    StreamClosed,
    StreamNotFound,
)
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_from_message
from rondel.v1.wire import from_tensor, to_tensor


class StreamCore:
    """State of a remote stream. Used by one caller at a time; a second one gets SessionBusy."""

    def __init__(
        self, reply: pb.OpenStreamResponse, opened: dict[str, StreamCore], max_message_bytes: int
    ) -> None:
        self._spec = spec_from_message(reply.spec)
        self._ref = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)
        self._generation = reply.generation
        self._length = reply.committed_length
        self._lengths = [reply.committed_length] * self._spec.layers
        self._truncating: pb.TruncateStreamRequest | None = None
        self._closed = False
        self._busy = threading.Lock()
        self._max_message_bytes = max_message_bytes
        self._opened = opened
        opened[reply.handle] = self

    @property
    def handle(self) -> str:
        """The server's name for the stream."""
        return self._ref.handle

    @property
    def spec(self) -> StreamSpec:
        """The specification in force, defaults filled in."""
        return self._spec

    @property
    def length(self) -> int:
        """Tokens that all layers hold: the committed ones."""
        return self._length

    @property
    def generation(self) -> int:
        """How often the stream was truncated."""
        return self._generation

    @property
    def max_chunk(self) -> int | None:
        """How far a wrapped layer may run ahead of ``length``; None = no bound."""
        return self._spec.max_chunk

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def layer_length(self, layer: int) -> int:
        """Tokens that one layer holds. Raises InvalidLayer."""
        self._spec.group_index(layer)
        return self._lengths[layer]

    def chunks(self, tokens: int, *, at_most: int = 512) -> Iterator[slice]:
        """Slices of a run of new tokens, each of which every layer may take before the next one's turn.

        Their steps, and the answers, are within the message limits of client and server. Raises
        QuotaExceeded when not even one token is, and InvalidRequest.
        """
        tokens, at_most = checked_count("tokens", tokens, 0), checked_count("at_most", at_most, 1)
        fitting = (
            step_tokens(self._ref, group.layers[-1], group, self._max_message_bytes)
            for group in self._spec.groups
        )
        return self._pieces(tokens, min(at_most, *fitting))

    def _pieces(self, tokens: int, at_most: int) -> Iterator[slice]:
        start = 0
        while start < tokens:
            stop = min(tokens, start + min(at_most, self._spec.room(self._length)))
            yield slice(start, stop)
            start = stop

    @contextmanager
    def alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise SessionBusy(
                "another caller is inside this stream; a stream is used by one caller at a time"
            )
        try:
            if self._closed:
                raise StreamClosed(f"the stream {self.handle} was closed")
            yield
        finally:
            self._busy.release()

    def _store(self, first: int, count: int, k: Array, v: Array) -> Steps[int]:
        """One AppendToken: k [layers, tokens, Hkv, Dk], v [layers, tokens, Hkv, Dv]."""
        request = pb.AppendTokenRequest(
            stream=self._ref,
            generation=self._generation,
            position=self.layer_length(first),
            first_layer=first,
            k=to_tensor(k),
            v=to_tensor(v),
        )
        reply = yield from ask(calls.APPEND, request)
        self._lengths[first : first + count] = [reply.layer_length] * count
        self._length = reply.committed_length
        return reply.layer_length

    def _append(self, layer: int, k: Array, v: Array) -> Steps[int]:
        with self.alone():
            k, v = self._tokens(layer, k, v)
            return (yield from self._store(layer, 1, k[None], v[None]))

    def _append_all(self, k: Array, v: Array) -> Steps[int]:
        with self.alone():
            (k, v), layers = self._stacks(k=k, v=v), self._spec.layers
            run, most = append_shape(self._ref, layers, self._spec.group(0), self._max_message_bytes)
            tokens = k.shape[1]
            # The server takes any number of tokens for all layers; layers that go one after the other must
            # not run too far ahead.
            parts = _even_pieces(tokens, most) if run == layers else self._pieces(tokens, most)
            for part in parts:
                for first in range(0, layers, run):
                    rows = slice(first, min(layers, first + run))
                    yield from self._store(first, rows.stop - first, k[rows, part], v[rows, part])
            return self._length

    def _attend(
        self, layer: int, q: Array, position: int | None, return_lse: bool
    ) -> Steps[tuple[Array, Array | None]]:
        with self.alone():
            group, held = self._spec.group(layer), self.layer_length(layer)
            q = checked_array("q", q, (None, group.query_heads, group.key_dim))
            request = pb.AttendRequest(
                stream=self._ref,
                generation=self._generation,
                layer=layer,
                position=None if position is None else checked_position("position", position, held),
                q=to_tensor(q),
                return_lse=bool(return_lse),
            )
            reply = yield from ask(calls.ATTEND, request)
            return from_tensor(reply.out, name="out"), from_tensor(
                reply.lse, name="lse"
            ) if return_lse else None

    def _step(
        self, layer: int, q: Array, k: Array, v: Array, return_lse: bool
    ) -> Steps[tuple[Array, Array | None]]:
        with self.alone():
            request = pb.StepRequest(layer=layer, items=[self.item(layer, q, k, v, return_lse)])
            reply = yield from ask(calls.STEP, request)
            return self._result(layer, reply, return_lse)

    def _step_embeddings(self, layer: int, x: Array) -> Steps[Array]:
        with self.alone():
            item = self._item(layer)
            item.embeddings.CopyFrom(to_tensor(checked_array("x", x, (None, None))))
            reply = yield from ask(calls.STEP, pb.StepRequest(layer=layer, items=[item]))
            return self._result(layer, reply, False)[0]

    def _step_all(self, q: Array, k: Array, v: Array) -> Steps[Array]:
        with self.alone():
            k, v, q = self._stacks(k=k, v=v, q=q)
            tokens, group = k.shape[1], self._spec.group(0)
            out = np.empty((self._spec.layers, tokens, group.query_heads, group.value_dim), np.float32)
            for part in self.chunks(tokens):
                for layer in range(self._spec.layers):
                    item = self.item(layer, q[layer, part], k[layer, part], v[layer, part], False)
                    reply = yield from ask(calls.STEP, pb.StepRequest(layer=layer, items=[item]))
                    out[layer, part], _ = self._result(layer, reply, False)
            return out

    def _truncate(self, length: int) -> Steps[None]:
        with self.alone():
            length = checked_position("length", length, self._length)
            # One that failed may have been carried out: when it is made again it must be known as the same.
            if self._truncating is None or self._truncating.length != length:
                self._truncating = pb.TruncateStreamRequest(
                    stream=self._ref, generation=self._generation, length=length, request_id=request_id()
                )
            reply = yield from ask(calls.TRUNCATE, self._truncating)
            self._truncating = None
            self._generation = reply.generation
            self._length = reply.committed_length
            self._lengths = [reply.committed_length] * self._spec.layers

    def _stats(self) -> Steps[StreamStats]:
        with self.alone():
            reply = yield from ask(calls.GET, pb.GetStreamRequest(stream=self._ref))
            return stats_of(reply)

    def close_steps(self) -> Steps[None]:
        # Not `_alone`: closing twice is fine, and closing must work while another call hangs.
        if self._closed:
            return
        self._closed = True
        self._opened.pop(self.handle, None)
        request = pb.CloseStreamRequest(stream=self._ref, request_id=request_id())
        try:
            yield from ask(calls.CLOSE, request)
        except (StreamNotFound, StreamClosed):
            return  # the lease was faster, or the server is another one by now

    def _tokens(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        group = self._spec.group(layer)
        k = checked_array("k", k, (None, group.kv_heads, group.key_dim))
        return k, checked_array("v", v, (len(k), group.kv_heads, group.value_dim))

    def _stacks(self, **arrays: Array) -> list[Array]:
        """Arrays of all layers, [layers, tokens, heads, dim]: k, v and perhaps q."""
        layers = self._spec.layers
        if not self._spec.same_shape(range(layers)):
            raise InvalidShape(
                "the layers of this stream differ in shape: use the calls for one layer",
                got="layers of several shapes",
                expected="layers of one shape",
            )
        group = self._spec.group(0)
        shapes = {
            "k": (group.kv_heads, group.key_dim),
            "v": (group.kv_heads, group.value_dim),
            "q": (group.query_heads, group.key_dim),
        }
        checked: list[Array] = []
        for name, array in arrays.items():
            tokens = checked[0].shape[1] if checked else None
            checked.append(checked_array(name, array, (layers, tokens, *shapes[name])))
        return checked

    def item(self, layer: int, q: Array, k: Array, v: Array, return_lse: bool) -> pb.StepItem:
        k, v = self._tokens(layer, k, v)
        group = self._spec.group(layer)
        q = checked_array("q", q, (len(k), group.query_heads, group.key_dim))
        item = self._item(layer, return_lse)
        for field, array in (("q", q), ("k", k), ("v", v)):
            getattr(item, field).CopyFrom(to_tensor(array))
        return item

    def _item(self, layer: int, return_lse: bool = False) -> pb.StepItem:
        position = self.layer_length(layer)
        return pb.StepItem(
            stream=self._ref, generation=self._generation, position=position, return_lse=bool(return_lse)
        )

    def _result(self, layer: int, reply: pb.StepResponse, return_lse: bool) -> tuple[Array, Array | None]:
        if len(reply.results) != 1:
            raise ServerInternal(f"the server answered {len(reply.results)} items of 1")
        outcome = self.outcome(layer, reply.results[0], return_lse)
        if outcome.out is None:
            raise outcome.error or ServerInternal("a step has neither output nor error")
        return outcome.out, outcome.lse

    def outcome(self, layer: int, result: pb.StepResult, return_lse: bool) -> StepOutcome:
        if result.status.code:
            return StepOutcome(None, None, item_error(result.status))
        self._lengths[layer] = result.layer_length
        self._length = result.committed_length
        lse = from_tensor(result.lse, name="lse") if return_lse else None
        return StepOutcome(from_tensor(result.out, name="out"), lse, None)


def _even_pieces(tokens: int, most: int) -> Iterator[slice]:
    for start in range(0, tokens, most):
        yield slice(start, min(tokens, start + most))


def request_id() -> str:
    """A name for a request, so that its repetition is known as one."""
    return uuid.uuid4().hex
