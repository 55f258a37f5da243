"""The operations of Decode calls: a message to what the scheduler carries out, its result to a response.

What an operation does is what the unary method of its request does, and is done by the same function; only
the stream is named by a number of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.session import DecoderSession
from rondel.server import loads, returns
from rondel.server.bound import Bindings, Bound, not_bound
from rondel.server.bounds import MESSAGES, bounded_texts, check_items, check_size, check_texts
from rondel.server.config import ServerConfig
from rondel.server.entries import Entry
from rondel.server.pending import PLAIN_BYTES, Pending
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

ERROR_BYTES: Final = 1024
"""What the result of an item that has failed has at most, but for a few with three times that."""
OPENED_BYTES: Final = MESSAGES["rondel.v1.OpenStreamRequest"] + (128 << 10)
"""More than what is said of a stream that is there: its specification is in it, with all its defaults."""


@dataclass(slots=True)
class _Steps(Asked):
    """The items of a step in a Decode call."""

    bound: tuple[Bound | None, ...]

    def entry(self, number: int, item: pb.StepItem, streams: TenantStreams) -> Entry:
        bound = self.bound[number]
        if item.HasField("stream"):
            raise _unwanted()
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
            "truncate": work.truncate,
            "seal": work.seal,
            "close": work.close,
        }

    def prepare(self, pending: Pending, bindings: Bindings, tenant: str) -> None:
        """Has an operation ready to be begun; one that cannot be meant has its result then, an error."""
        try:
            request, ref = getattr(pending.message, pending.kind), pending.message.stream_ref
            if pending.kind == "step":
                self._prepare_step(pending, request, ref, bindings, tenant)
            else:
                check_size(request.DESCRIPTOR, request.ByteSize())
                check_texts(request, _TEXTS.get(pending.kind, ()))
                self._prepare(pending, request, ref, bindings, tenant)
        except Exception as error:  # noqa: BLE001 - one operation's error must not be the others'
            pending.fail(error, bindings)

    def begin(self, pending: Pending, tenant: str, *, alone: bool) -> None:
        """Hands an operation to the scheduler; if it is ``alone``, no other of the call being under way, it
        may be over when this returns. Raises Overloaded, Draining, DeadlineExpired."""
        joint = pending.kind == "step"
        operation = self._scheduler.submit(
            pending,
            self._stepping if joint else _alone,
            pending.work,
            cost=pending.size,
            deadline=pending.deadline,
            tenant=tenant,
            load=pending.load,
            joint=joint,
            piecewise=pending.kind == "attend",
            at_once=alone and pending.short,
        )
        if not pending.done():
            pending.operation = operation

    def cancel(self, pending: Pending) -> None:
        """If the operation has not begun, it never does; and nobody is told."""
        pending.cancel()
        if pending.operation is not None:
            self._scheduler.withdraw(pending.operation)

    def _prepare(self, pending: Pending, request: Any, ref: int, bindings: Bindings, tenant: str) -> None:
        if pending.kind == "release":
            bindings.release(bindings[ref])
            return
        if pending.kind in ("open", "attach"):
            pending.bound = bindings.bind(ref)
            pending.reply_bytes = OPENED_BYTES
            work = self._open if pending.kind == "open" else self._attach
            pending.work = partial(work, pending.bound, request, tenant)
            pending.load = loads.OPEN
            return
        if request.HasField("stream"):
            raise _unwanted()
        bound = bindings[ref]
        if pending.kind == "close":
            pending.bound = bound
        elif pending.kind == "append":
            pending.load = loads.of_append(request)
        elif pending.kind == "attend":
            pending.reply_bytes = self._attend_bytes(request, bound)
            pending.load = loads.of_attend(request, self._streams.look_up(tenant, bound.handle))
            pending.work = partial(self._attend, bound, request, tenant)
            return
        pending.work = partial(self._carry_out, pending.kind, bound, request, tenant)

    def _prepare_step(
        self, pending: Pending, request: pb.StepRequest, ref: int, bindings: Bindings, tenant: str
    ) -> None:
        check_items("step", "items", len(request.items), self._config.max_step_items)
        if ref:
            raise InvalidRequest(
                "stream_ref must be 0 with a step, whose items have their own", field="stream_ref"
            )
        bound = tuple([bindings.get(item.stream_ref) for item in request.items])
        pending.reply_bytes = self._step_bytes(request, bound)
        pending.work = _Steps(tenant, request, pending.result.step, bound)

        def look_up(number: int) -> DecoderSession | None:
            stream = bound[number]
            return None if stream is None else self._streams.look_up(tenant, stream.handle)

        pending.load = loads.of_step(request, look_up)
        # What a projection takes is in no estimate.
        if len(bound) == 1 and not request.items[0].HasField("embeddings"):
            session = look_up(0)
            pending.short = session is not None and session.looked_at

    def _step_bytes(self, request: pb.StepRequest, bound: tuple[Bound | None, ...]) -> int:
        layer, most = request.layer, self._config.max_message_bytes
        size = 0
        for item, stream in zip(request.items, bound, strict=True):
            width = 0 if stream is None else stream.width(layer)
            if width is None:
                return most  # the operation that binds it is under way
            rows = _bytes_of_rows(width, item.embeddings if item.HasField("embeddings") else item.q)
            size += max(rows, ERROR_BYTES)
        return min(max(size, PLAIN_BYTES), most)

    def _attend_bytes(self, request: pb.AttendRequest, bound: Bound) -> int:
        width, most = bound.width(request.layer), self._config.max_message_bytes
        if width is None or returns.wanted(request):
            return most
        return min(max(_bytes_of_rows(width, request.q), PLAIN_BYTES), most)

    # On the worker.

    def _open(self, bound: Bound, request: pb.OpenStreamRequest, tenant: str) -> pb.OpenStreamResponse:
        entry = self._work.open_entry(request, self._streams.of(tenant))
        bound.fill(entry, self._streams.epoch)
        return self._work.opened(entry)

    def _attach(self, bound: Bound, request: pb.AttachStreamRequest, tenant: str) -> pb.AttachStreamResponse:
        entry = self._work.attach_entry(request, self._streams.of(tenant))
        bound.fill(entry, self._streams.epoch)
        return pb.AttachStreamResponse(stream=self._work.opened(entry))

    def _attend(
        self, bound: Bound, request: pb.AttendRequest, tenant: str
    ) -> Generator[None, None, pb.AttendResponse]:
        request.stream.CopyFrom(bound.stream())
        return (yield from self._work.attend(request, self._streams.of(tenant)))

    def _carry_out(self, kind: str, bound: Bound, request: Any, tenant: str) -> Message:
        request.stream.CopyFrom(bound.stream())
        return self._on_stream[kind](request, self._streams.of(tenant))


def _alone(work: Callable[[], Any]) -> Any:
    return work()


def _unwanted() -> InvalidRequest:
    return InvalidRequest("stream must be unset in a Decode call, which has stream_ref", field="stream")


def _bytes_of_rows(width: int, rows: tensor_pb2.Tensor) -> int:
    """What rows are answered with at most; those that cannot be are refused, and nothing is, then."""
    tokens = rows.shape[0] if rows.shape else 0
    return RESULT_OVERHEAD + width * tokens if 0 < tokens <= MAX_AXIS else RESULT_OVERHEAD
