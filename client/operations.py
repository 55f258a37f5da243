"""Operations of a client that are not those of one stream, without their input and output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from rondel.client import calls
from rondel.client.calls import Steps, ask
from rondel.client.checks import checked_limit, checked_list, checked_spec, checked_text
from rondel.client.lasting import request_id
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.values import Array, ListedStream, ServerInfo, listed_of, tenant_of
from rondel.decoder.errors import DeadlineExpired, InvalidRequest, RondelError, ServerUnavailable
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.tenant_pb2 import ListStreamsRequest

_UNHEARD: Final = (DeadlineExpired, ServerUnavailable)
"""After these a request may have been carried out."""
_PAGE: Final = 500
"""Streams in an answer, of some 100 bytes each."""


class OpenOptions(TypedDict, total=False):
    """What ``open`` takes beside the specification."""

    projections: str
    """Projections of the server, by name (``info``), for ``step_embeddings``; default: none."""
    from_prefix: str
    """Begin with the prefix of this name (``Stream.fork``), with its specification; default: empty."""
    max_new_tokens: int | None
    """With ``from_prefix``, as in ``Stream.fork``."""


def open_stream(
    spec: StreamSpec | None,
    limits: Limits,
    opened: Opened,
    *,
    projections: str = "",
    from_prefix: str = "",
    max_new_tokens: int | None = None,
) -> Steps[pb.OpenStreamResponse]:
    """Open a stream; the request id makes a repeated request open it once. Learns the server's limits."""
    from_prefix = checked_text("from_prefix", from_prefix)
    request = pb.OpenStreamRequest(
        spec=None if spec is None and from_prefix else spec_to_message(checked_spec(spec)),
        request_id=request_id(),
        projections=checked_text("projections", projections),
        from_prefix=from_prefix,
        max_new_tokens=checked_limit(max_new_tokens),
    )
    if limits.start is None:  # before there is a stream that would be lost if this failed
        yield from server_info(limits)
    for _ in range(len(opened.unanswered)):
        if opened.unanswered:  # another task of the client may have been quicker
            yield from _undo(opened.unanswered.pop(0), opened)
    try:
        reply = yield from ask(calls.OPEN, request)
    except (*_UNHEARD, GeneratorExit):  # the last is a cancelled call
        opened.unanswered.append(request)
        raise
    if reply.start_id != limits.start:
        try:
            yield from server_info(limits)
        except (RondelError, GeneratorExit):  # then nobody gets to know of the stream
            opened.unanswered.append(request)
            raise
    return reply


def columns(items: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Streams, q, k and v of the items of a step. Raises InvalidRequest for what is none."""
    rows = checked_list("items", items)
    for row in rows:
        if not isinstance(row, tuple) or len(row) != 4:
            raise InvalidRequest("items must be tuples of a stream, q, k and v", field="items")
    return [[row[column] for row in rows] for column in range(4)]


def attach_stream(handle: str, limits: Limits) -> Steps[pb.OpenStreamResponse]:
    """Take over a stream of the server by its handle."""
    if limits.start is None:
        yield from server_info(limits)
    stream = pb.StreamRef(handle=checked_text("handle", handle))
    request = pb.AttachStreamRequest(stream=stream, request_id=request_id())
    return (yield from ask(calls.ATTACH, request)).stream


def close_all(opened: Opened) -> list[Steps[None]]:
    """Close what a client has opened and not closed."""
    closings = [stream.close_steps() for stream in list(opened.values())]
    return closings + [_undo(request, opened) for request in opened.unanswered]


def _undo(request: pb.OpenStreamRequest, opened: Opened) -> Steps[None]:
    """Close the stream of an Open that nobody heard the answer of: asked again, it is answered again."""
    try:
        reply = yield from ask(calls.OPEN, request)
        stream = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)
        yield from ask(calls.CLOSE, pb.CloseStreamRequest(stream=stream))
    except (*_UNHEARD, GeneratorExit) as error:
        # It was taken from the list meanwhile: closed by one task it would be opened once more by another,
        # which may not come to closing it.
        opened.unanswered.append(request)
        if isinstance(error, GeneratorExit):
            raise
    except RondelError:
        return  # it could not be opened; or it never was, and now there is no room


def pack(result: tuple[Array, Array | None]) -> Array | tuple[Array, Array]:
    """An output, alone or with its lse."""
    out, lse = result
    return out if lse is None else (out, lse)


def server_info(limits: Limits) -> Steps[ServerInfo]:
    """Ask what the server is and allows; ``limits`` learns from it."""
    reply = yield from ask(calls.INFO, pb.GetServerInfoRequest())
    limits.start, limits.server = reply.start_id, reply.limits.max_message_bytes
    return ServerInfo(
        version=reply.version,
        tier=reply.tier,
        epoch=reply.epoch,
        threads=reply.threads,
        streams=reply.streams,
        budget=reply.memory.budget,
        reserved=reply.memory.reserved,
        resident=reply.memory.resident,
        shared=reply.memory.shared,
        max_message_bytes=reply.limits.max_message_bytes,
        max_streams=reply.limits.max_streams,
        max_queue_bytes=reply.limits.max_queue_bytes,
        max_queue_ms=reply.limits.max_queue_ms,
        max_step_items=reply.limits.max_step_items,
        idle_lease_ms=reply.limits.idle_lease_ms,
        projections=tuple(reply.projections),
        overcommit=reply.memory.overcommit or 1.0,
        tenant=tenant_of(reply.tenant),
    )


def list_streams() -> Steps[list[ListedStream]]:
    """All streams of one's tenant, oldest first."""
    found: list[ListedStream] = []
    request = ListStreamsRequest(page_size=_PAGE)
    while True:
        reply = yield from ask(calls.LIST, request)
        found += map(listed_of, reply.streams)
        if not reply.next_page_token:
            return found
        request.page_token = reply.next_page_token
