"""AttentionService: message to call to message. Rules are in exactly_once.py, arithmetic in the decoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from rondel.decoder import kernels
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.session import DecoderSession
from rondel.server import exactly_once
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.errors import known, to_status
from rondel.server.scheduler import Scheduler
from rondel.server.streams import Entry, StreamRegistry
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.specs import spec_from_message, spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

_THREADS: Final = 1
"""The kernels of this version run on the worker that calls them."""
_RESULT_OVERHEAD: Final = 256

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class AttentionService:
    """Handlers of rondel.v1.AttentionService. What touches sessions runs on the scheduler's worker."""

    def __init__(
        self, config: ServerConfig, streams: StreamRegistry, scheduler: Scheduler, version: str
    ) -> None:
        self._config = config
        self._streams = streams
        self._scheduler = scheduler
        self._version = version
        self._lease_ms = math.ceil(config.idle_lease_seconds * 1000)

    async def open_stream(self, request: pb.OpenStreamRequest, call: Call) -> pb.OpenStreamResponse:
        return await self._on_worker(self._open, request, call)

    async def append_token(self, request: pb.AppendTokenRequest, call: Call) -> pb.AppendTokenResponse:
        return await self._on_worker(self._append, request, call)

    async def attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        return await self._on_worker(self._attend, request, call)

    async def step(self, request: pb.StepRequest, call: Call) -> pb.StepResponse:
        if not 1 <= len(request.items) <= self._config.max_step_items:
            raise InvalidRequest(
                f"a step has 1 to {self._config.max_step_items} items, got {len(request.items)}",
                field="items",
            )
        return await self._on_worker(self._step, request, call)

    async def truncate_stream(
        self, request: pb.TruncateStreamRequest, call: Call
    ) -> pb.TruncateStreamResponse:
        return await self._on_worker(self._truncate, request, call)

    async def get_stream(self, request: pb.GetStreamRequest, call: Call) -> pb.GetStreamResponse:
        return await self._on_worker(self._get, request, call)

    async def close_stream(self, request: pb.CloseStreamRequest, call: Call) -> pb.CloseStreamResponse:
        return await self._on_worker(self._close, request, call)

    async def get_server_info(self, request: pb.GetServerInfoRequest, call: Call) -> pb.GetServerInfoResponse:
        return await self._on_worker(self._info, request, call)

    async def _on_worker(self, work: Callable[[Request], Response], request: Request, call: Call) -> Response:
        return await self._scheduler.run(partial(work, request), cost=call.size, deadline=call.deadline)

    # What follows runs on the worker.

    def _entry(self, stream: pb.StreamRef) -> Entry:
        return self._streams.get(stream.handle, stream.epoch)

    def _open(self, request: pb.OpenStreamRequest) -> pb.OpenStreamResponse:
        if not request.HasField("spec"):
            raise InvalidRequest("the specification is missing", field="spec")
        entry = self._streams.open(spec_from_message(request.spec), request.request_id)
        session = entry.session
        return pb.OpenStreamResponse(
            handle=entry.handle,
            epoch=self._streams.epoch,
            generation=session.generation,
            committed_length=session.length,
            max_chunk=session.max_chunk,
            bytes_reserved=session.stats().bytes_reserved,
            spec=spec_to_message(session.spec, in_force=True),
            idle_lease_ms=self._lease_ms,
        )

    def _append(self, request: pb.AppendTokenRequest) -> pb.AppendTokenResponse:
        session = self._entry(request.stream).session
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

    def _attend(self, request: pb.AttendRequest) -> pb.AttendResponse:
        session = self._entry(request.stream).session
        q = from_tensor(request.q, name="q")
        self._check_reply(_reply_bytes(session, request.layer, q))
        out, lse = exactly_once.attend(
            session,
            generation=request.generation,
            position=request.position if request.HasField("position") else None,
            layer=request.layer,
            q=q,
            return_lse=request.return_lse,
        )
        return pb.AttendResponse(out=to_tensor(out), lse=_optional(lse), committed_length=session.length)

    def _step(self, request: pb.StepRequest) -> pb.StepResponse:
        response = pb.StepResponse()
        size = 0
        named: set[str] = set()
        for item in request.items:
            result, reply_bytes = self._step_item(request.layer, item, size, named)
            response.results.append(result)
            size += reply_bytes
        return response

    def _step_item(
        self, layer: int, item: pb.StepItem, size: int, named: set[str]
    ) -> tuple[pb.StepResult, int]:
        """The result of one item and its bytes. The items before it have named the streams ``named`` and take
        ``size`` bytes of the reply."""
        result = pb.StepResult()
        try:
            session = self._entry(item.stream).session
            result.committed_length = session.length
            if item.stream.handle in named:
                raise InvalidRequest("a stream may occur once in a call", field="stream")
            named.add(item.stream.handle)
            q = from_tensor(item.q, name="q")
            reply_bytes = _reply_bytes(session, layer, q)
            self._check_reply(size + reply_bytes)
            done = exactly_once.step(
                session,
                generation=item.generation,
                position=item.position,
                layer=layer,
                q=q,
                k=from_tensor(item.k, name="k"),
                v=from_tensor(item.v, name="v"),
                return_lse=item.return_lse,
            )
        except Exception as error:  # noqa: BLE001 - one item's error must not be the others'
            result.status.CopyFrom(to_status(known(error)))
            return result, result.ByteSize()
        result = pb.StepResult(
            out=to_tensor(done.out),
            lse=_optional(done.lse),
            committed_length=session.length,
            layer_length=done.layer_length,
            duplicate=done.duplicate,
        )
        return result, reply_bytes

    def _check_reply(self, size: int) -> None:
        """A reply that cannot be sent must be refused before anything has changed."""
        if size > self._config.max_message_bytes:
            raise InvalidRequest(
                f"the reply would have about {size} bytes, the server sends at most "
                f"{self._config.max_message_bytes}; send fewer rows or items",
                field="q",
            )

    def _truncate(self, request: pb.TruncateStreamRequest) -> pb.TruncateStreamResponse:
        entry = self._entry(request.stream)
        exactly_once.truncate(
            entry, generation=request.generation, length=request.length, request_id=request.request_id
        )
        session = entry.session
        return pb.TruncateStreamResponse(generation=session.generation, committed_length=session.length)

    def _get(self, request: pb.GetStreamRequest) -> pb.GetStreamResponse:
        session = self._entry(request.stream).session
        stats = session.stats()
        return pb.GetStreamResponse(
            spec=spec_to_message(session.spec, in_force=True),
            epoch=self._streams.epoch,
            generation=stats.generation,
            committed_length=stats.length,
            layer_lengths=[session.layer_length(layer) for layer in range(session.spec.layers)],
            high_water=stats.high_water,
            min_length=stats.min_length,
            max_chunk=session.max_chunk,
            bytes_reserved=stats.bytes_reserved,
            bytes_resident=stats.bytes_resident,
            bits_per_value=stats.bits_per_value,
            pages=stats.pages,
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
            ),
            memory=pb.MemoryInfo(budget=memory.budget, reserved=memory.reserved, resident=memory.resident),
            streams=len(self._streams),
            threads=_THREADS,
        )


def _reply_bytes(session: DecoderSession, layer: int, q: NDArray[np.float32]) -> int:
    """Bytes of a result for these rows, lse and all the rest included, rounded up."""
    group = session.spec.group(layer)
    rows = q.shape[0] if q.ndim else 0
    return rows * group.query_heads * (group.value_dim + 1) * 4 + _RESULT_OVERHEAD


def _optional(lse: NDArray[np.float32] | None) -> tensor_pb2.Tensor | None:
    return None if lse is None else to_tensor(lse)
