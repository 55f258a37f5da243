"""What the numbers mean that a Decode call gives to streams."""

from __future__ import annotations

from rondel.decoder.errors import InvalidRequest, QuotaExceeded, StreamNotFound
from rondel.server.entries import Entry
from rondel.v1 import attention_pb2 as pb


class Bound:
    """A stream with a number. Made when the operation that binds it is read, so that others may follow at
    once; which stream it is the worker fills in when it has carried that out."""

    __slots__ = ("_ref", "_stream", "_widths")

    def __init__(self, ref: int) -> None:
        self._ref = ref
        self._stream: pb.StreamRef | None = None
        self._widths: list[int] = []

    @property
    def ref(self) -> int:
        """The number."""
        return self._ref

    def fill(self, entry: Entry, epoch: int) -> None:
        """On the worker: this is the stream."""
        spec = entry.session.spec
        groups = (spec.group(layer) for layer in range(spec.layers))
        self._widths = [4 * group.query_heads * (group.value_dim + 1) for group in groups]
        self._stream = pb.StreamRef(handle=entry.handle, epoch=epoch)

    @property
    def handle(self) -> str:
        """The stream's; empty while it is not known, or for good."""
        return "" if self._stream is None else self._stream.handle

    def stream(self) -> pb.StreamRef:
        """On the worker: the stream. Raises StreamNotFound: what was to bind it has failed."""
        if self._stream is None:
            raise StreamNotFound(f"stream_ref {self._ref} stands for no stream: it could not be bound")
        return self._stream

    def width(self, layer: int) -> int | None:
        """Bytes of output and lse of a query row; None: not known yet. 0 for a layer that it lacks."""
        if not self._widths:
            return None
        return self._widths[layer] if layer < len(self._widths) else 0


class Bindings:
    """The streams of a call by their numbers; at most so many at a time. For the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bound: dict[int, Bound] = {}

    def bind(self, ref: int) -> Bound:
        """A number for a stream. Raises InvalidRequest; QuotaExceeded."""
        if not ref:
            raise InvalidRequest("stream_ref must be from 1 on, got none", field="stream_ref")
        if ref in self._bound:
            raise InvalidRequest(f"stream_ref {ref} is bound already; release it first", field="stream_ref")
        if len(self._bound) >= self._most:
            raise QuotaExceeded(
                f"the call has bound {self._most} streams, it may have no more", limit=self._most
            )
        self._bound[ref] = bound = Bound(ref)
        return bound

    def get(self, ref: int) -> Bound | None:
        """What a number stands for."""
        return self._bound.get(ref)

    def __getitem__(self, ref: int) -> Bound:
        """What a number stands for. Raises InvalidRequest: nothing."""
        bound = self._bound.get(ref)
        if bound is None:
            raise not_bound(ref)
        return bound

    def release(self, bound: Bound) -> None:
        """Free the number, if it still stands for that."""
        if self._bound.get(bound.ref) is bound:
            del self._bound[bound.ref]


def not_bound(ref: int) -> InvalidRequest:
    """The error for a number that stands for nothing."""
    return InvalidRequest(f"stream_ref {ref} is not bound", field="stream_ref")
