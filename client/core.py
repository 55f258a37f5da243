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
from rondel.client.errors import item_error
from rondel.client.values import Array, StepOutcome, StreamStats
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

CHUNK_BYTES = 2 << 20
"""Request bytes that ``chunks`` and ``append_all`` aim at, well below any server's message limit."""


class StreamCore:
    """State of a remote stream. Used by one caller at a time; a second one gets SessionBusy."""

    def __init__(self, reply: pb.OpenStreamResponse, opened: dict[str, StreamCore]) -> None:
        self._spec = spec_from_message(reply.spec)
        self._ref = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)
        self._generation = reply.generation
        self._length = reply.committed_length
        self._lengths = [reply.committed_length] * self._spec.layers
        self._truncating: pb.TruncateStreamRequest | None = None
        self._closed = False
        self._busy = threading.Lock()
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

        They are small enough for a server's message limit as well.
        """
        most = max(
            1, min(at_most, CHUNK_BYTES // max(self._token_bytes(layer) for layer in self._first_layers()))
        )
        start = 0
        while start < tokens:
            stop = min(tokens, start + min(most, self._spec.room(self._length)))
            yield slice(start, stop)
            start = stop

    def _first_layers(self) -> list[int]:
        return [group.layers[0] for group in self._spec.groups]

    def _token_bytes(self, layer: int) -> int:
        group = self._spec.group(layer)
        keys = group.kv_heads * (group.key_dim + group.value_dim)
        return 4 * (keys + group.query_heads * max(group.key_dim, group.value_dim))

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
            self._spec.group_index(layer)
            return (yield from self._store(layer, 1, k[None], v[None]))

    def _append_all(self, k: Array, v: Array) -> Steps[int]:
        with self.alone():
            tokens = self._tokens_of_all(k, v)
            at_once = max(1, CHUNK_BYTES // (self._token_bytes(0) * self._spec.layers))
            for start in range(0, tokens, at_once):
                part = slice(start, start + at_once)
                yield from self._store(0, self._spec.layers, k[:, part], v[:, part])
            return self._length

    def _attend(
        self, layer: int, q: Array, position: int | None, return_lse: bool
    ) -> Steps[tuple[Array, Array | None]]:
        with self.alone():
            self._spec.group_index(layer)
            request = pb.AttendRequest(
                stream=self._ref,
                generation=self._generation,
                layer=layer,
                position=position,
                q=to_tensor(q),
                return_lse=return_lse,
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

    def _step_all(self, q: Array, k: Array, v: Array) -> Steps[Array]:
        with self.alone():
            tokens = self._tokens_of_all(q, k, v)
            group = self._spec.group(0)
            out = np.empty((self._spec.layers, tokens, group.query_heads, group.value_dim), np.float32)
            for part in self.chunks(tokens):
                for layer in range(self._spec.layers):
                    item = self.item(layer, q[layer, part], k[layer, part], v[layer, part], False)
                    reply = yield from ask(calls.STEP, pb.StepRequest(layer=layer, items=[item]))
                    out[layer, part], _ = self._result(layer, reply, False)
            return out

    def _truncate(self, length: int) -> Steps[None]:
        with self.alone():
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
            return StreamStats(
                length=reply.committed_length,
                layer_lengths=tuple(reply.layer_lengths),
                high_water=reply.high_water,
                min_length=reply.min_length,
                generation=reply.generation,
                bytes_reserved=reply.bytes_reserved,
                bytes_resident=reply.bytes_resident,
                bits_per_value=reply.bits_per_value,
                pages=reply.pages,
            )

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

    def _tokens_of_all(self, *arrays: Array) -> int:
        layers = self._spec.layers
        for array in arrays:
            if array.ndim != 4 or array.shape[0] != layers or array.shape[1] != arrays[0].shape[1]:
                expected = f"[{layers}, tokens, heads, dim], the same tokens in each"
                raise InvalidShape(
                    f"got an array of shape {array.shape}, expected {expected}",
                    got=str(array.shape),
                    expected=expected,
                )
        if not self._spec.same_shape(range(layers)):
            raise InvalidShape(
                "the layers of this stream differ in shape: use the calls for one layer",
                got="layers of several shapes",
                expected="layers of one shape",
            )
        return int(arrays[0].shape[1])

    def item(self, layer: int, q: Array, k: Array, v: Array, return_lse: bool) -> pb.StepItem:
        return pb.StepItem(
            stream=self._ref,
            generation=self._generation,
            position=self.layer_length(layer),
            q=to_tensor(q),
            k=to_tensor(k),
            v=to_tensor(v),
            return_lse=return_lse,
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


def request_id() -> str:
    """A name for a request, so that its repetition is known as one."""
    return uuid.uuid4().hex
