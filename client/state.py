"""What a client knows of a remote stream, and how it takes arrays for it. Nothing here is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rondel.client.checks import checked_array, checked_count
from rondel.client.limits import step_tokens
from rondel.client.values import Array
from rondel.decoder.errors import InvalidShape, SequenceGap, SessionBusy, StreamClosed
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_from_message


class StreamState:
    """State of a remote stream. Used by one caller at a time; a second one gets SessionBusy."""

    def __init__(self, reply: pb.OpenStreamResponse, max_message_bytes: int) -> None:
        self._spec = spec_from_message(reply.spec)
        self._ref = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)
        self._generation = reply.generation
        self._length = reply.committed_length
        # A server that cannot fork yet does not tell the layers' lengths: they are all alike there.
        self._lengths = list(reply.layer_lengths) or [reply.committed_length] * self._spec.layers
        self._unfinished: int | None = None  # where a call for all layers began that was not answered in full
        self._forking: pb.ForkStreamRequest | None = None
        self._truncating: pb.TruncateStreamRequest | None = None
        self._closing: pb.CloseStreamRequest | None = None
        self._closed = False
        self._busy = threading.Lock()
        self._max_message_bytes = max_message_bytes

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
        """How often the stream was truncated, attached to, or found in its file by a server's start."""
        return self._generation

    @property
    def max_chunk(self) -> int | None:
        """How far a wrapped layer may run ahead of ``length``; None = no bound."""
        return self._spec.max_chunk

    @property
    def closed(self) -> bool:
        """Whether the server has closed it, or has lost it."""
        return self._closed

    def layer_length(self, layer: int) -> int:
        """Tokens that one layer holds. Raises InvalidLayer."""
        self._spec.group_index(layer)
        return self._lengths[layer]

    def chunks(self, tokens: int, *, at_most: int = 512, first: int | None = None) -> Iterator[slice]:
        """Slices of a run of new tokens, each of which every layer may take before the next one's turn.

        Their steps, and the answers, are within the message limits of client and server. ``first``: the
        position of the run's first token, where it is not the stream's length at each slice's turn. Raises
        QuotaExceeded when not even one token is, and InvalidRequest.
        """
        tokens, at_most = checked_count("tokens", tokens, 0), checked_count("at_most", at_most, 1)
        fitting = (
            step_tokens(self._ref, group.layers[-1], group, self._max_message_bytes)
            for group in self._spec.groups
        )
        return self._pieces(tokens, min(at_most, *fitting), first)

    def _pieces(self, tokens: int, at_most: int, first: int | None = None) -> Iterator[slice]:
        """Pieces of a run; ``first``: the position of its first token, where it is not what comes next."""
        start = 0
        while start < tokens:
            committed = self._length if first is None else first + start
            stop = min(tokens, start + min(at_most, self._spec.room(committed)))
            yield slice(start, stop)
            start = stop

    def _begin_whole(self) -> int:
        """Where a call for all layers begins.

        One that failed may be made again: then it begins, and is cut, as it was, and the server tells what it
        has by now. Other tokens it refuses with PositionConflict.
        """
        if self._unfinished is None:
            if max(self._lengths) != self._length:
                raise SequenceGap(
                    f"the layers are not level: they have {self._length} to {max(self._lengths)} tokens",
                    expected=self._length,
                )
            self._unfinished = self._length
        return self._unfinished

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
