"""AttentionService: message to call to message. Rules are in exactly_once.py, arithmetic in the decoder."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Final, TypeVar

from google.protobuf.message import Message

from rondel.decoder import kernels, pool
from rondel.decoder.errors import InvalidRequest, SequenceGap
from rondel.server import attending, exactly_once, forking, loads, returns
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.entries import Entry
from rondel.server.observer import DEAF, Observer
from rondel.server.operation import Load
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
from rondel.server.stepping import Stepping
from rondel.server.streams import StreamRegistry
from rondel.server.transfers import Transfers
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import options_from_message
from rondel.v1.specs import spec_from_message, spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

log = logging.getLogger("rondel.server")

_SHORT: Final = Load("short")
"""What looks something up, or changes a few numbers."""

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
        version: str,
        observer: Observer = DEAF,
    ) -> None:
        self._config = config
        self._streams = streams
        self._scheduler = scheduler
        self._projections = projections
        self._version = version
        self._observer = observer
        self._stepping = Stepping(config, streams, scheduler, observer)
        self._transfers = Transfers(config, streams, scheduler, projections)
        self._lease_ms = milliseconds(config.idle_lease_seconds)

    async def open_stream(self, request: pb.OpenStreamRequest, call: Call) -> pb.OpenStreamResponse:
        return await self._on_worker(self._open, request, call, Load("open"))

    async def append_token(self, request: pb.AppendTokenRequest, call: Call) -> pb.AppendTokenResponse:
        return await self._on_worker(self._append, request, call, loads.of_append(request))

    async def attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        return await self._scheduler.run_piecewise(
            partial(self._attend, request),
            cost=call.size,
            deadline=call.deadline,
            tenant=call.tenant,
            load=loads.of_attend(self._streams, request),
        )

    async def step(self, request: pb.StepRequest, call: Call) -> pb.StepResponse:
        if not 1 <= len(request.items) <= self._config.max_step_items:
            raise InvalidRequest(
                f"a step has 1 to {self._config.max_step_items} items, got {len(request.items)}",
                field="items",
            )
        return await self._scheduler.run_jointly(
            self._stepping,
            request,
            cost=call.size,
            deadline=call.deadline,
            tenant=call.tenant,
            load=loads.of_step(self._streams, request),
        )

    async def fork_stream(self, request: pb.ForkStreamRequest, call: Call) -> pb.ForkStreamResponse:
        return await self._on_worker(self._fork, request, call, Load("fork"))

    async def truncate_stream(
        self, request: pb.TruncateStreamRequest, call: Call
    ) -> pb.TruncateStreamResponse:
        return await self._on_worker(self._truncate, request, call)

    async def seal_stream(self, request: pb.SealStreamRequest, call: Call) -> pb.SealStreamResponse:
        return await self._on_worker(self._seal, request, call)

    async def get_stream(self, request: pb.GetStreamRequest, call: Call) -> pb.GetStreamResponse:
        return await self._on_worker(self._get, request, call)

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
        self, work: Callable[[Request], Response], request: Request, call: Call, load: Load = _SHORT
    ) -> Response:
        return await self._scheduler.run(
            partial(work, request),
            cost=max(1, call.size),  # an empty request is a call, too
            deadline=call.deadline,
            tenant=call.tenant,
            load=load,
        )

    # What follows runs on the worker.

    def _entry(self, stream: pb.StreamRef) -> Entry:
        return self._streams.get(stream.handle, stream.epoch)

    def _entry_to_change(self, stream: pb.StreamRef) -> Entry:
        return self._streams.get_to_change(stream.handle, stream.epoch)

    def _open(self, request: pb.OpenStreamRequest) -> pb.OpenStreamResponse:
        spec = spec_from_message(request.spec) if request.HasField("spec") else None
        projections = self._projections.get(request.projections)
        if request.from_prefix:
            named = projections if request.projections else None
            return self._opened(forking.open_prefix(self._streams, request, spec, named))
        if spec is None:
            raise InvalidRequest("the specification is missing", field="spec")
        if request.HasField("max_new_tokens"):
            raise InvalidRequest(
                f"max_new_tokens must be unset without from_prefix, got {request.max_new_tokens}",
                field="max_new_tokens",
            )
        name = request.projections
        entry = self._streams.open(spec, request.request_id, projections, projections_name=name)
        return self._opened(entry)

    def _fork(self, request: pb.ForkStreamRequest) -> pb.ForkStreamResponse:
        return pb.ForkStreamResponse(stream=self._opened(forking.fork(self._streams, request)))

    def _opened(self, entry: Entry) -> pb.OpenStreamResponse:
        return opened(entry, self._streams.epoch, self._lease_ms)

    def _append(self, request: pb.AppendTokenRequest) -> pb.AppendTokenResponse:
        session = self._entry_to_change(request.stream).session
        k, v = from_tensor(request.k, name="k"), from_tensor(request.v, name="v")
        tenant = self._scheduler.tenant()
        self._scheduler.check()
        try:
            done = exactly_once.append(
                session,
                generation=request.generation,
                position=request.position,
                first_layer=request.first_layer,
                k=k,
                v=v,
            )
        except SequenceGap:
            self._observer.gap(tenant)
            raise
        if done.duplicate:
            self._observer.repeated(tenant)
        else:
            self._observer.stored(k.shape[0] * k.shape[1], tenant)
        return pb.AppendTokenResponse(
            committed_length=session.length, layer_length=done.layer_length, duplicate=done.duplicate
        )

    def _attend(self, request: pb.AttendRequest) -> Generator[None, None, pb.AttendResponse]:
        session = self._entry(request.stream).session
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
            check=self._scheduler.check,
        )
        response = pb.AttendResponse(out=to_tensor(out), lse=optional(lse), committed_length=session.length)
        returns.fill(response, session, request, q, options)
        return response

    def _seal(self, request: pb.SealStreamRequest) -> pb.SealStreamResponse:
        session = self._entry_to_change(request.stream).session
        exactly_once.check_generation(session, request.generation)
        session.seal()
        return pb.SealStreamResponse(committed_length=session.length)

    def _truncate(self, request: pb.TruncateStreamRequest) -> pb.TruncateStreamResponse:
        entry = self._entry_to_change(request.stream)
        exactly_once.truncate(
            entry, generation=request.generation, length=request.length, request_id=request.request_id
        )
        session = entry.session
        return pb.TruncateStreamResponse(generation=session.generation, committed_length=session.length)

    def _get(self, request: pb.GetStreamRequest) -> pb.GetStreamResponse:
        entry = self._entry(request.stream)
        session = entry.session
        stats = session.stats(quality=request.quality)
        if stats.quality is not None and stats.quality.worrying and not entry.worried:
            entry.worried = True
            log.warning("the keys of stream %s do not suit its storage: %s", entry.handle, stats.quality)
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

    def _close(self, request: pb.CloseStreamRequest) -> pb.CloseStreamResponse:
        closed = self._streams.close(request.stream.handle, request.stream.epoch, request.request_id)
        return pb.CloseStreamResponse(
            committed_length=closed.committed_length, bytes_released=closed.bytes_released
        )

    def _info(self, request: pb.GetServerInfoRequest) -> pb.GetServerInfoResponse:
        memory = self._streams.arena.stats()
        return pb.GetServerInfoResponse(
            version=self._version,
            tier=kernels.TIER,
            epoch=self._streams.epoch,
            limits=pb.ServerLimits(
                max_message_bytes=self._config.max_message_bytes,
                max_streams=self._config.max_streams,
                max_queue_bytes=self._config.queue_bytes,
                max_step_items=self._config.max_step_items,
                idle_lease_ms=self._lease_ms,
                stall_timeout_ms=milliseconds(self._config.stall_timeout_seconds),
                max_queue_ms=milliseconds(self._config.max_queue_seconds),
            ),
            memory=pb.MemoryInfo(
                budget=memory.budget,
                reserved=memory.reserved,
                resident=memory.resident,
                shared=memory.shared,
            ),
            streams=len(self._streams),
            threads=pool.threads(),
            projections=self._projections.names,
        )
