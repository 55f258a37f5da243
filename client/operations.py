"""Operations of a client that are not those of one stream, without their input and output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, TypedDict

from rondel.client import calls
from rondel.client.calls import Steps, ask
from rondel.client.checks import checked_limit, checked_list, checked_spec, checked_text
from rondel.client.core import StreamCore, request_id
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.values import (
    Array,
    ListedStream,
    Options,
    ServerInfo,
    StepOutcome,
    listed_of,
    tenant_of,
)
from rondel.decoder.errors import (
    DeadlineExpired,
    InvalidRequest,
    RondelError,
    ServerInternal,
    ServerUnavailable,
)
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.tenant_pb2 import ListStreamsRequest

_UNHEARD: Final = (DeadlineExpired, ServerUnavailable)
"""After these a request may have been carried out."""
_BATCH: Final = ("streams", "qs", "ks", "vs")
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
    if limits.epoch is None:  # before there is a stream that would be lost if this failed
        yield from server_info(limits)
    for _ in range(len(opened.unanswered)):
        if opened.unanswered:  # another task of the client may have been quicker
            yield from _undo(opened.unanswered.pop(0), opened)
    try:
        reply = yield from ask(calls.OPEN, request)
    except (*_UNHEARD, GeneratorExit):  # the last is a cancelled call
        opened.unanswered.append(request)
        raise
    if reply.epoch != limits.epoch:
        try:
            yield from server_info(limits)
        except (RondelError, GeneratorExit):  # then nobody gets to know of the stream
            opened.unanswered.append(request)
            raise
    return reply


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
    limits.epoch, limits.server = reply.epoch, reply.limits.max_message_bytes
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


def step_batch(
    layer: int,
    streams: Sequence[StreamCore],
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    options: Sequence[Options] | None,
    return_lse: bool,
) -> Steps[list[StepOutcome]]:
    """One Step for many streams."""
    checked = [checked_list(*pair) for pair in zip(_BATCH, (streams, qs, ks, vs), strict=True)]
    checked.append([None] * len(checked[0]) if options is None else checked_list("options", options))
    counts = tuple(map(len, checked))
    if len(set(counts)) != 1:
        raise InvalidRequest(f"{', '.join(_BATCH)} and options must be of one length, got {counts}")
    for stream in checked[0]:
        if not isinstance(stream, StreamCore):
            raise InvalidRequest(f"streams must be streams of a client, got {type(stream).__name__}")
    if len({id(stream) for stream in checked[0]}) != len(checked[0]):
        raise InvalidRequest("a stream may occur once only in a batch, got one of them again")
    if not checked[0]:
        return []
    outcomes: dict[int, StepOutcome] = {}
    items: dict[int, pb.StepItem] = {}
    with ExitStack() as inside:
        for stream in checked[0]:
            inside.enter_context(stream.alone())
        for index, (stream, q, k, v, asked) in enumerate(zip(*checked, strict=True)):
            try:
                items[index] = stream.item(layer, q, k, v, asked, return_lse)
            except RondelError as error:  # this stream's; the others are stepped
                outcomes[index] = StepOutcome(None, None, error)
        if items:
            reply = yield from ask(calls.STEP, pb.StepRequest(layer=layer, items=items.values()))
            if len(reply.results) != len(items):
                raise ServerInternal(f"the server answered {len(reply.results)} items of {len(items)}")
            for index, result in zip(items, reply.results, strict=True):
                outcomes[index] = checked[0][index].outcome(layer, result, return_lse)
    return [outcomes[index] for index in range(len(checked[0]))]
