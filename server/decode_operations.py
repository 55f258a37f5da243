"""The operations of Decode calls: a message to what the scheduler carries out, its result to a response.

What an operation does is what the unary method of its request does, and is done by the same function; only
the stream is named by a number of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from rondel.decoder.errors import InvalidRequest
from rondel.server import returns
from rondel.server.bound import Bindings, Bound, not_bound
from rondel.server.bounds import bounded_texts, check_items, check_size, check_texts
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.entries import Entry
from rondel.server.errors import known, to_status
from rondel.server.replies import RESULT_OVERHEAD
from rondel.server.scheduler import Scheduler
from rondel.server.stepping import Asked, Stepping
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.server.work import Work
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.wire import MAX_AXIS

_TEXTS: Final = {
    kind: bounded_texts(pb.DESCRIPTOR.message_types_by_name[request])
    for kind, request in {
        "open": "OpenStreamRequest",
        "attach": "AttachStreamRequest",
        "truncate": "TruncateStreamRequest",
        "close": "CloseStreamRequest",
    }.items()
}
"""The texts of those requests that have any."""
_PLAIN_BYTES: Final = 4096
"""More than a result without tensors has, be it an error with all its details."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation that was read and is not answered."""

    message: pb.DecodeOperation
    kind: str
    size: int
    """Bytes of its message."""
    reply_bytes: int
    """Most bytes of its result."""
    begin: Callable[[], asyncio.Future[Any]] | None
    """Hands it to the scheduler; None = there is nothing left to do. Raises Overloaded, Draining."""
    bound: Bound | None = None
    """The stream that it binds, or closes."""
    response: pb.DecodeResponse = field(default_factory=pb.DecodeResponse)
    """Where its result goes."""


@dataclass(frozen=True, slots=True)
class _Steps(Asked):
    """The items of a step in a Decode call."""

    bound: tuple[Bound | None, ...]

    def entry(self, number: int, streams: TenantStreams) -> Entry:
        item, bound = self.request.items[number], self.bound[number]
        if item.HasField("stream"):
            raise InvalidRequest(
                "stream must be unset in a Decode call, which has stream_ref", field="stream"
            )
        if bound is None:
            raise not_bound(item.stream_ref)
        stream = bound.stream()
        return streams.get_to_change(stream.handle, stream.epoch)


class Operations:
    """Makes operations of messages. For the event loop; what is handed to the scheduler is for its worker."""

    def __init__(
        self,
        config: ServerConfig,
        streams: StreamRegistry,
        scheduler: Scheduler,
        stepping: Stepping,
        work: Work,
    ) -> None:
        self._config = config
        self._streams = streams
        self._scheduler = scheduler
        self._stepping = stepping
        self._work = work
        self._on_stream: Mapping[str, Callable[[Any, TenantStreams], Message]] = {
            "append": work.append,
            "attend": work.attend,
            "truncate": work.truncate,
            "seal": work.seal,
            "close": work.close,
        }

    def read(
        self, message: pb.DecodeOperation, size: int, arrived: float, bindings: Bindings, call: Call
    ) -> Pending:
        """An operation of a call, of so many bytes. One that cannot be meant is done, with its error.

        ``arrived``: when it was read, on ``time.monotonic``.
        """
        kind = message.WhichOneof("operation") or ""
        pending = Pending(message, kind, size, _PLAIN_BYTES, None)
        pending.response.results.add().op_id = message.op_id
        try:
            self._prepare(pending, message, _deadline(message, arrived, call), bindings, call.tenant)
        except Exception as error:  # noqa: BLE001 - one operation's error must not be the others'
            fail(pending, error, bindings)
        return pending

    def _prepare(
        self,
        pending: Pending,
        message: pb.DecodeOperation,
        deadline: float | None,
        bindings: Bindings,
        tenant: str,
    ) -> None:
        request, ref = getattr(message, pending.kind), message.stream_ref
        work: Callable[[], Message]
        if pending.kind == "step":
            self._prepare_step(pending, request, ref, deadline, bindings, tenant)
            return
        check_size(request.DESCRIPTOR, request.ByteSize())
        check_texts(request, _TEXTS.get(pending.kind, ()))
        match pending.kind:
            case "open":
                pending.bound = bindings.bind(ref)
                work = partial(self._open, pending.bound, request, tenant)
            case "attach":
                pending.bound = bindings.bind(ref)
                work = partial(self._attach, pending.bound, request, tenant)
            case "release":
                bindings.release(bindings[ref])
                return
            case _:
                if request.HasField("stream"):
                    raise InvalidRequest(
                        "stream must be unset in a Decode call, which has stream_ref", field="stream"
                    )
                bound = bindings[ref]
                pending.bound = bound if pending.kind == "close" else None
                if pending.kind == "attend":
                    pending.reply_bytes = self._attend_bytes(request, bound)
                work = partial(self._carry_out, pending.kind, bound, request, tenant)
        pending.begin = partial(
            self._scheduler.begin,
            work,
            cost=pending.size,
            deadline=deadline,
            tenant=tenant,
        )

    def _prepare_step(
        self,
        pending: Pending,
        request: pb.StepRequest,
        ref: int,
        deadline: float | None,
        bindings: Bindings,
        tenant: str,
    ) -> None:
        check_items("step", "items", len(request.items), self._config.max_step_items)
        if ref:
            raise InvalidRequest(
                "stream_ref must be 0 with a step, whose items have their own", field="stream_ref"
            )
        bound = tuple(bindings.get(item.stream_ref) for item in request.items)
        pending.reply_bytes = self._step_bytes(request, bound)
        pending.begin = partial(
            self._scheduler.begin_jointly,
            self._stepping,
            _Steps(tenant, request, pending.response.results[0].step, bound),
            cost=pending.size,
            deadline=deadline,
            tenant=tenant,
        )

    def _step_bytes(self, request: pb.StepRequest, bound: tuple[Bound | None, ...]) -> int:
        layer, most = request.layer, self._config.max_message_bytes
        size = 0
        for item, stream in zip(request.items, bound, strict=True):
            if stream is None:
                continue
            width = stream.width(layer)
            if width is None:
                return most  # the operation that binds it is under way
            size += _bytes_of_rows(width, item.embeddings if item.HasField("embeddings") else item.q)
        return min(max(size, _PLAIN_BYTES), most)

    def _attend_bytes(self, request: pb.AttendRequest, bound: Bound) -> int:
        width, most = bound.width(request.layer), self._config.max_message_bytes
        if width is None or returns.wanted(request):
            return most
        return min(max(_bytes_of_rows(width, request.q), _PLAIN_BYTES), most)

    # On the worker.

    def _open(self, bound: Bound, request: pb.OpenStreamRequest, tenant: str) -> pb.OpenStreamResponse:
        entry = self._work.open_entry(request, self._streams.of(tenant))
        bound.fill(entry, self._streams.epoch)
        return self._work.opened(entry)

    def _attach(self, bound: Bound, request: pb.AttachStreamRequest, tenant: str) -> pb.AttachStreamResponse:
        entry = self._work.attach_entry(request, self._streams.of(tenant))
        bound.fill(entry, self._streams.epoch)
        return pb.AttachStreamResponse(stream=self._work.opened(entry))

    def _carry_out(self, kind: str, bound: Bound, request: Any, tenant: str) -> Message:
        request.stream.CopyFrom(bound.stream())
        return self._on_stream[kind](request, self._streams.of(tenant))


def finish(pending: Pending, future: asyncio.Future[Any], bindings: Bindings) -> None:
    """Puts what became of an operation into its response."""
    error = future.exception()
    if error is not None:
        fail(pending, error, bindings)
        return
    if pending.kind != "step":  # whose result was filled where it is
        getattr(pending.response.results[0], pending.kind).CopyFrom(future.result())
    if pending.kind == "close" and pending.bound is not None:
        bindings.release(pending.bound)


def fail(pending: Pending, error: BaseException, bindings: Bindings) -> None:
    """Makes an error an operation's result."""
    if not isinstance(error, Exception):
        raise error
    result = pending.response.results[0]
    result.Clear()
    result.op_id = pending.message.op_id
    result.status.CopyFrom(to_status(known(error)))
    if pending.kind in ("open", "attach") and pending.bound is not None:
        bindings.release(pending.bound)


def _bytes_of_rows(width: int, rows: tensor_pb2.Tensor) -> int:
    """What rows are answered with at most; those that cannot be are refused, and nothing is, then."""
    tokens = rows.shape[0] if rows.shape else 0
    return RESULT_OVERHEAD + width * tokens if 0 < tokens <= MAX_AXIS else RESULT_OVERHEAD


def _deadline(message: pb.DecodeOperation, arrived: float, call: Call) -> float | None:
    if not message.timeout_ms:
        return call.deadline
    deadline = arrived + message.timeout_ms / 1000
    return deadline if call.deadline is None else min(deadline, call.deadline)
