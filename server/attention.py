"""AttentionService: calls to the scheduler. What they do is in work.py, stepping.py and so on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from rondel.server import loads, steps
from rondel.server.bounds import check_items
from rondel.server.config import ServerConfig
from rondel.server.decode import Decoding
from rondel.server.decode_operations import Operations
from rondel.server.door import Call
from rondel.server.duplex import Duplex
from rondel.server.listing import list_streams
from rondel.server.operation import Load
from rondel.server.projections import ProjectionSets
from rondel.server.scheduler import Scheduler
from rondel.server.stepping import Asked, Stepping
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.server.transfers import Transfers
from rondel.server.work import Work
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tenant_pb2 import ListStreamsRequest, ListStreamsResponse

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")


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
        self._work = Work(config, streams, projections, scheduler)
        self._stepping = Stepping(config, streams, scheduler)
        self._transfers = Transfers(config, streams, scheduler, projections)
        operations = Operations(config, streams, scheduler, self._stepping, self._work)
        self._decoding = Decoding(config, operations, self._work.hello)

    async def open_stream(self, request: pb.OpenStreamRequest, call: Call) -> pb.OpenStreamResponse:
        return await self._on_worker(self._work.open, request, call, loads.OPEN)

    async def append_token(self, request: pb.AppendTokenRequest, call: Call) -> pb.AppendTokenResponse:
        with call.steps(steps.of_append, request):
            return await self._on_worker(self._work.append, request, call, loads.of_append(request))

    async def attend(self, request: pb.AttendRequest, call: Call) -> pb.AttendResponse:
        with call.steps(steps.of_attend, request):
            return await self._scheduler.run_piecewise(
                partial(self._scoped, self._work.attend, request, call.tenant),
                cost=call.size,
                deadline=call.deadline,
                tenant=call.tenant,
                load=loads.of_attend(request, self._streams.look_up(call.tenant, request.stream.handle)),
            )

    async def step(self, request: pb.StepRequest, call: Call) -> pb.StepResponse:
        check_items("step", "items", len(request.items), self._config.max_step_items)
        with call.steps(steps.of_step, request):
            return await self._scheduler.run_jointly(
                self._stepping,
                Asked(call.tenant, request, pb.StepResponse()),
                cost=call.size,
                deadline=call.deadline,
                tenant=call.tenant,
                load=loads.of_step(
                    request,
                    lambda item: self._streams.look_up(call.tenant, request.items[item].stream.handle),
                ),
            )

    async def decode(self, duplex: Duplex, call: Call) -> None:
        await self._decoding.converse(duplex, call)

    async def fork_stream(self, request: pb.ForkStreamRequest, call: Call) -> pb.ForkStreamResponse:
        return await self._on_worker(self._work.fork, request, call, loads.FORK)

    async def truncate_stream(
        self, request: pb.TruncateStreamRequest, call: Call
    ) -> pb.TruncateStreamResponse:
        return await self._on_worker(self._work.truncate, request, call)

    async def attach_stream(self, request: pb.AttachStreamRequest, call: Call) -> pb.AttachStreamResponse:
        return await self._on_worker(self._work.attach, request, call)

    async def seal_stream(self, request: pb.SealStreamRequest, call: Call) -> pb.SealStreamResponse:
        return await self._on_worker(self._work.seal, request, call)

    async def get_stream(self, request: pb.GetStreamRequest, call: Call) -> pb.GetStreamResponse:
        return await self._on_worker(self._work.get, request, call)

    async def list_streams(self, request: ListStreamsRequest, call: Call) -> ListStreamsResponse:
        return await self._on_worker(list_streams, request, call)

    async def close_stream(self, request: pb.CloseStreamRequest, call: Call) -> pb.CloseStreamResponse:
        return await self._on_worker(self._work.close, request, call)

    async def export_stream(self, request: pb.ExportStreamRequest, call: Call) -> None:
        await self._transfers.send(request, call)

    async def import_stream(
        self, requests: AsyncIterator[pb.ImportStreamRequest], call: Call
    ) -> pb.ImportStreamResponse:
        return await self._transfers.receive(requests, call)

    async def get_server_info(self, request: pb.GetServerInfoRequest, call: Call) -> pb.GetServerInfoResponse:
        return await self._on_worker(self._work.info, request, call)

    async def _on_worker(
        self,
        work: Callable[[Request, TenantStreams], Response],
        request: Request,
        call: Call,
        load: Load = loads.SHORT,
    ) -> Response:
        return await self._scheduler.run(
            partial(self._scoped, work, request, call.tenant),
            cost=max(1, call.size),  # an empty request is a call, too
            deadline=call.deadline,
            tenant=call.tenant,
            load=load,
        )

    def _scoped(self, work: Callable[[Request, TenantStreams], T], request: Request, tenant: str) -> T:
        """On the worker, the streams of the call's tenant being its own to look up."""
        return work(request, self._streams.of(tenant))
