"""Operations of a client that are not those of one stream, without their input and output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from rondel.client import calls
from rondel.client.calls import Steps, ask
from rondel.client.core import StreamCore, request_id
from rondel.client.values import Array, ServerInfo, StepOutcome
from rondel.decoder.errors import InvalidRequest, ServerInternal
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message


def open_stream(spec: StreamSpec) -> Steps[pb.OpenStreamResponse]:
    """Open a stream; the request id makes a repeated request open it once."""
    request = pb.OpenStreamRequest(spec=spec_to_message(spec), request_id=request_id())
    return (yield from ask(calls.OPEN, request))


def close_all(opened: Mapping[str, StreamCore]) -> list[Steps[None]]:
    """Close what a client has opened and not closed."""
    return [stream.close_steps() for stream in list(opened.values())]


def pack(result: tuple[Array, Array | None]) -> Array | tuple[Array, Array]:
    """An output, alone or with its lse."""
    out, lse = result
    return out if lse is None else (out, lse)


def server_info() -> Steps[ServerInfo]:
    """Ask what the server is and allows."""
    reply = yield from ask(calls.INFO, pb.GetServerInfoRequest())
    return ServerInfo(
        version=reply.version,
        tier=reply.tier,
        epoch=reply.epoch,
        threads=reply.threads,
        streams=reply.streams,
        budget=reply.memory.budget,
        reserved=reply.memory.reserved,
        resident=reply.memory.resident,
        max_message_bytes=reply.limits.max_message_bytes,
        max_streams=reply.limits.max_streams,
        max_queue_bytes=reply.limits.max_queue_bytes,
        max_step_items=reply.limits.max_step_items,
        idle_lease_ms=reply.limits.idle_lease_ms,
    )


def step_batch(
    layer: int,
    streams: Sequence[StreamCore],
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    return_lse: bool,
) -> Steps[list[StepOutcome]]:
    """One Step for many streams."""
    counts = (len(streams), len(qs), len(ks), len(vs))
    if len(set(counts)) != 1:
        raise InvalidRequest(f"streams, qs, ks and vs must be of one length, got {counts}")
    if not streams:
        return []
    with ExitStack() as inside:
        for stream in streams:
            inside.enter_context(stream.alone())
        items = [
            stream.item(layer, q, k, v, return_lse)
            for stream, q, k, v in zip(streams, qs, ks, vs, strict=True)
        ]
        reply = yield from ask(calls.STEP, pb.StepRequest(layer=layer, items=items))
        if len(reply.results) != len(streams):
            raise ServerInternal(f"the server answered {len(reply.results)} items of {len(streams)}")
        return [
            stream.outcome(layer, result, return_lse)
            for stream, result in zip(streams, reply.results, strict=True)
        ]
