"""AttentionService: message to call to message. Rules are in exactly_once.py, arithmetic in the decoder."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from rondel.decoder.errors import InvalidRequest
from rondel.server import exactly_once, forking, returns, steps
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.entries import Entry
from rondel.server.info import server_info
from rondel.server.listing import list_streams
from rondel.server.logs import shortened
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
from rondel.server.scheduler import Scheduler
from rondel.server.stepping import Asked, Stepping
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.server.transfers import Transfers
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import options_from_message
from rondel.v1.specs import spec_from_message, spec_to_message
from rondel.v1.tenant_pb2 import ListStreamsRequest, ListStreamsResponse
from rondel.v1.wire import from_tensor, to_tensor

log = logging.getLogger("rondel.server")

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class AttentionService:
    """Handlers of rondel.v1.AttentionService. What touches sessions runs on the scheduler's worker."""

    def __init__(
        self,
        config: ServerConfig,
        streams: StreamRegistry,
        scheduler: Scheduler,
        projections: ProjectionSets,
    ) -> None:
        self._config = config
        self._streams = streams
        self._scheduler = scheduler
        self._projections = projections
        self._stepping = Stepping(config, streams)
        self._transfers = Transfers(config, streams, scheduler, projections)
        self._lease_ms = milliseconds(config.idle_lease_seconds)

    async def open_stream(self, request: pb.OpenStreamRequest, call: Call) -> pb.OpenStreamResponse:
        return await self._on_worker(self._open, request, call)

    async def append_token(self, request: pb.AppendTokenRequest, call: Call) -> pb.AppendTokenResponse:
        with call.steps(steps.of_append(request)):
            return await self._on_worker(self._append, request, call)

    async def attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        with call.steps(steps.of_attend(request)):
            return await self._on_worker(self._attend, request, call)

    async def step(self, request: pb.StepRequest, call: Call) -> pb.StepResponse:
        if not 1 <= len(request.items) <= self._config.max_step_items:
            raise InvalidRequest(
                f"a step has 1 to {self._config.max_step_items} items, got {len(request.items)}",
                field="items",
            )
        with call.steps(steps.of_step(request)):
            return await self._scheduler.run_jointly(
                self._stepping,
                Asked(call.tenant, request),
                cost=call.size,
                deadline=call.deadline,
                tenant=call.tenant,
            )

    async def fork_stream(self, request: pb.ForkStreamRequest, call: Call) -> pb.ForkStreamResponse:
        return await self._on_worker(self._fork, request, call)

    async def truncate_stream(
        self, request: pb.TruncateStreamRequest, call: Call
    ) -> pb.TruncateStreamResponse:
        return await self._on_worker(self._truncate, request, call)

    async def seal_stream(self, request: pb.SealStreamRequest, call: Call) -> pb.SealStreamResponse:
        return await self._on_worker(self._seal, request, call)

    async def get_stream(self, request: pb.GetStreamRequest, call: Call) -> pb.GetStreamResponse:
        return await self._on_worker(self._get, request, call)

    async def list_streams(self, request: ListStreamsRequest, call: Call) -> ListStreamsResponse:
        return await self._on_worker(list_streams, request, call)

    async def close_stream(self, request: pb.CloseStreamRequest, call: Call) -> pb.CloseStreamResponse:
        return await self._on_worker(self._close, request, call)

    async def export_stream(self, request: pb.ExportStreamRequest, call: Call) -> None:
        await self._transfers.send(request, call)

    async def import_stream(
        self, requests: AsyncIterator[pb.ImportStreamRequest], call: Call
    ) -> pb.ImportStreamResponse:
        return await self._transfers.receive(requests, call)

    async def get_server_info(self, request: pb.GetServerInfoRequest, call: Call) -> pb.GetServerInfoResponse:
        return await self._on_worker(self._info, request, call)

    async def _on_worker(
        self, work: Callable[[Request, TenantStreams], Response], request: Request, call: Call
    ) -> Response:
        return await self._scheduler.run(
            partial(self._scoped, work, request, call.tenant),
            cost=call.size,
            deadline=call.deadline,
            tenant=call.tenant,
        )

    # What follows runs on the worker.

    def _scoped(
        self, work: Callable[[Request, TenantStreams], Response], request: Request, tenant: str
    ) -> Response:
        return work(request, self._streams.of(tenant))

    def _open(self, request: pb.OpenStreamRequest, streams: TenantStreams) -> pb.OpenStreamResponse:
        spec = spec_from_message(request.spec) if request.HasField("spec") else None
        projections = self._projections.get(request.projections)
        if request.from_prefix:
            named = projections if request.projections else None
            return self._opened(forking.open_prefix(streams, request, spec, named))
        if spec is None:
            raise InvalidRequest("the specification is missing", field="spec")
        if request.HasField("max_new_tokens"):
            raise InvalidRequest(
                f"max_new_tokens must be unset without from_prefix, got {request.max_new_tokens}",
                field="max_new_tokens",
            )
        name = request.projections
        entry = streams.open(spec, request.request_id, projections, projections_name=name)
        return self._opened(entry)

    def _fork(self, request: pb.ForkStreamRequest, streams: TenantStreams) -> pb.ForkStreamResponse:
        return pb.ForkStreamResponse(stream=self._opened(forking.fork(streams, request)))

    def _opened(self, entry: Entry) -> pb.OpenStreamResponse:
        return opened(entry, self._streams.epoch, self._lease_ms)

    def _append(self, request: pb.AppendTokenRequest, streams: TenantStreams) -> pb.AppendTokenResponse:
        session = _entry_to_change(streams, request.stream).session
        done = exactly_once.append(
            session,
            generation=request.generation,
            position=request.position,
            first_layer=request.first_layer,
            k=from_tensor(request.k, name="k"),
            v=from_tensor(request.v, name="v"),
        )
        return pb.AppendTokenResponse(
            committed_length=session.length, layer_length=done.layer_length, duplicate=done.duplicate
        )

    def _attend(self, request: pb.AttendRequest, streams: TenantStreams) -> pb.AttendResponse:
        session = _entry(streams, request.stream).session
        q = from_tensor(request.q, name="q")
        size = reply_bytes(session, request.layer, q) + returns.extra_bytes(session, request, q)
        check_reply(size, self._config.max_message_bytes)
        options = options_from_message(request.options) if request.HasField("options") else None
        out, lse = exactly_once.attend(
            session,
            generation=request.generation,
            position=request.position if request.HasField("position") else None,
            layer=request.layer,
            q=q,
            return_lse=request.return_lse,
            options=options,
        )
        response = pb.AttendResponse(out=to_tensor(out), lse=optional(lse), committed_length=session.length)
        returns.fill(response, session, request, q, options)
        return response

    def _seal(self, request: pb.SealStreamRequest, streams: TenantStreams) -> pb.SealStreamResponse:
        session = _entry_to_change(streams, request.stream).session
        exactly_once.check_generation(session, request.generation)
        session.seal()
        return pb.SealStreamResponse(committed_length=session.length)

    def _truncate(
        self, request: pb.TruncateStreamRequest, streams: TenantStreams
    ) -> pb.TruncateStreamResponse:
        entry = _entry_to_change(streams, request.stream)
        exactly_once.truncate(
            entry, generation=request.generation, length=request.length, request_id=request.request_id
        )
        session = entry.session
        return pb.TruncateStreamResponse(generation=session.generation, committed_length=session.length)

    def _get(self, request: pb.GetStreamRequest, streams: TenantStreams) -> pb.GetStreamResponse:
        entry = _entry(streams, request.stream)
        session = entry.session
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

    def _close(self, request: pb.CloseStreamRequest, streams: TenantStreams) -> pb.CloseStreamResponse:
        closed = streams.close(request.stream.handle, request.stream.epoch, request.request_id)
        return pb.CloseStreamResponse(
            committed_length=closed.committed_length, bytes_released=closed.bytes_released
        )

    def _info(self, request: pb.GetServerInfoRequest, streams: TenantStreams) -> pb.GetServerInfoResponse:
        return server_info(self._config, self._streams, self._projections, streams.tenant.name)


def _entry(streams: TenantStreams, stream: pb.StreamRef) -> Entry:
    return streams.get(stream.handle, stream.epoch)


def _entry_to_change(streams: TenantStreams, stream: pb.StreamRef) -> Entry:
    return streams.get_to_change(stream.handle, stream.epoch)
