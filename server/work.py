"""What the methods of AttentionService do: request to response, over the streams of the caller's tenant.

Rules are in exactly_once.py, arithmetic in the decoder. Unary calls and the operations of Decode calls end
here alike.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from rondel.decoder.errors import InvalidRequest
from rondel.server import attending, exactly_once, forking, returns
from rondel.server.config import ServerConfig
from rondel.server.entries import Entry
from rondel.server.info import decode_hello, server_info
from rondel.server.logs import shortened
from rondel.server.operation import AtHand
from rondel.server.projections import ProjectionSets
from rondel.server.replies import (
    check_reply,
    layer_lengths,
    milliseconds,
    opened,
    optional,
    quality_to_message,
    reply_bytes,
)
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import options_from_message
from rondel.v1.specs import spec_from_message, spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

log = logging.getLogger("rondel.server")


class Work:
    """One method for each of the service's that is answered with one message. For the scheduler's worker."""

    def __init__(
        self, config: ServerConfig, streams: StreamRegistry, projections: ProjectionSets, at_hand: AtHand
    ) -> None:
        self._config = config
        self._at_hand = at_hand
        self._streams = streams
        self._projections = projections
        self._lease_ms = milliseconds(config.idle_lease_seconds)

    def open(self, request: pb.OpenStreamRequest, streams: TenantStreams) -> pb.OpenStreamResponse:
        return self.opened(self.open_entry(request, streams))

    def open_entry(self, request: pb.OpenStreamRequest, streams: TenantStreams) -> Entry:
        spec = spec_from_message(request.spec) if request.HasField("spec") else None
        projections = self._projections.get(request.projections)
        if request.from_prefix:
            named = projections if request.projections else None
            return forking.open_prefix(streams, request, spec, named)
        if spec is None:
            raise InvalidRequest("the specification is missing", field="spec")
        if request.HasField("max_new_tokens"):
            raise InvalidRequest(
                f"max_new_tokens must be unset without from_prefix, got {request.max_new_tokens}",
                field="max_new_tokens",
            )
        name = request.projections
        return streams.open(spec, request.request_id, projections, projections_name=name)

    def attach(self, request: pb.AttachStreamRequest, streams: TenantStreams) -> pb.AttachStreamResponse:
        return pb.AttachStreamResponse(stream=self.opened(self.attach_entry(request, streams)))

    def attach_entry(self, request: pb.AttachStreamRequest, streams: TenantStreams) -> Entry:
        entry = _entry_to_change(streams, request.stream)
        generation = request.generation if request.HasField("generation") else None
        exactly_once.attach(entry, generation=generation, request_id=request.request_id)
        return entry

    def fork(self, request: pb.ForkStreamRequest, streams: TenantStreams) -> pb.ForkStreamResponse:
        return pb.ForkStreamResponse(stream=self.opened(forking.fork(streams, request)))

    def opened(self, entry: Entry) -> pb.OpenStreamResponse:
        entry.session.check_sound()  # it may be one of an earlier start, named again
        return opened(entry, self._streams, self._lease_ms)

    def append(self, request: pb.AppendTokenRequest, streams: TenantStreams) -> pb.AppendTokenResponse:
        session = _entry_to_change(streams, request.stream).session
        k, v = from_tensor(request.k, name="k"), from_tensor(request.v, name="v")
        self._at_hand.check()
        done = exactly_once.append(
            session,
            generation=request.generation,
            position=request.position,
            first_layer=request.first_layer,
            k=k,
            v=v,
        )
        return pb.AppendTokenResponse(
            committed_length=session.length, layer_length=done.layer_length, duplicate=done.duplicate
        )

    def attend(
        self, request: pb.AttendRequest, streams: TenantStreams
    ) -> Generator[None, None, pb.AttendResponse]:
        """In pieces: a long one lets others have their turns."""
        session = _entry(streams, request.stream).session
        q = from_tensor(request.q, name="q")
        size = reply_bytes(session, request.layer, q) + returns.extra_bytes(session, request, q)
        check_reply(size, self._config.max_message_bytes)
        options = options_from_message(request.options) if request.HasField("options") else None
        out, lse = yield from attending.attend(
            session,
            generation=request.generation,
            position=request.position if request.HasField("position") else None,
            layer=request.layer,
            q=q,
            return_lse=request.return_lse,
            options=options,
            check=self._at_hand.check,
        )
        response = pb.AttendResponse(out=to_tensor(out), lse=optional(lse), committed_length=session.length)
        returns.fill(response, session, request, q, options)
        return response

    def seal(self, request: pb.SealStreamRequest, streams: TenantStreams) -> pb.SealStreamResponse:
        session = _entry_to_change(streams, request.stream).session
        exactly_once.check_generation(session, request.generation)
        session.seal()
        return pb.SealStreamResponse(committed_length=session.length)

    def truncate(
        self, request: pb.TruncateStreamRequest, streams: TenantStreams
    ) -> pb.TruncateStreamResponse:
        entry = _entry_to_change(streams, request.stream)
        exactly_once.truncate(
            entry, generation=request.generation, length=request.length, request_id=request.request_id
        )
        session = entry.session
        return pb.TruncateStreamResponse(generation=session.generation, committed_length=session.length)

    def get(self, request: pb.GetStreamRequest, streams: TenantStreams) -> pb.GetStreamResponse:
        entry = _entry(streams, request.stream)
        session = entry.session
        session.check_sound()
        stats = session.stats(quality=request.quality)
        if stats.quality is not None and stats.quality.worrying and not entry.worried:
            entry.worried = True
            who = shortened(entry.handle)
            log.warning("the keys of stream %s do not suit its storage: %s", who, stats.quality)
        return pb.GetStreamResponse(
            spec=spec_to_message(session.spec, in_force=True),
            epoch=self._streams.epoch,
            generation=stats.generation,
            committed_length=stats.length,
            layer_lengths=layer_lengths(session),
            high_water=stats.high_water,
            min_length=stats.min_length,
            max_chunk=session.max_chunk,
            bytes_reserved=stats.bytes_reserved,
            bytes_resident=stats.bytes_resident,
            bytes_shared=stats.bytes_shared,
            bits_per_value=stats.bits_per_value,
            pages=stats.pages,
            sealed=stats.sealed,
            quality=quality_to_message(stats.quality),
        )

    def close(self, request: pb.CloseStreamRequest, streams: TenantStreams) -> pb.CloseStreamResponse:
        stream, generation = request.stream, request.generation if request.HasField("generation") else None
        closed = streams.close(stream.handle, stream.epoch, request.request_id, generation)
        return pb.CloseStreamResponse(
            committed_length=closed.committed_length, bytes_released=closed.bytes_released
        )

    def info(self, request: pb.GetServerInfoRequest, streams: TenantStreams) -> pb.GetServerInfoResponse:
        return server_info(self._config, self._streams, self._projections, streams.tenant.name)

    def hello(self) -> pb.DecodeHello:
        """What never changes, so this one may be called on the loop."""
        return decode_hello(self._config, self._streams)


def _entry(streams: TenantStreams, stream: pb.StreamRef) -> Entry:
    return streams.get(stream.handle, stream.epoch)


def _entry_to_change(streams: TenantStreams, stream: pb.StreamRef) -> Entry:
    return streams.get_to_change(stream.handle, stream.epoch)
