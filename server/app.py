"""Building, starting and stopping a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rondel import __version__
from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import SessionBusy
from rondel.server import warm
from rondel.server.attention import AttentionService
from rondel.server.bounds import METADATA_BYTES
from rondel.server.config import ServerConfig
from rondel.server.door import Door
from rondel.server.gate import Gate
from rondel.server.generation import GenerationService
from rondel.server.health import LIVENESS, Health
from rondel.server.health import NAME as HEALTH
from rondel.server.listening import bind_tcp, bind_unix, check_tcp, check_unix
from rondel.server.models import Models
from rondel.server.observatory import Observatory
from rondel.server.projections import ProjectionSets
from rondel.server.reload import Changes
from rondel.server.scheduler import Scheduler
from rondel.server.security import CHECK_SECONDS, Security
from rondel.server.streams import StreamRegistry
from rondel.server.watchdog import watch
from rondel.v1 import attention_pb2, generation_pb2

if TYPE_CHECKING:
    from rondel.server.tracing import Tracing

log = logging.getLogger("rondel.server")

_ATTENTION = attention_pb2.DESCRIPTOR.services_by_name["AttentionService"]
_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
FLUSH_SECONDS: Final = 0.5
"""How long last messages, and last traces, may take on their way."""
LAST_SECONDS: Final = 2.0
"""How long a stop may take beyond its draining."""

DESCRIPTORS: Final = (_ATTENTION, _GENERATION)
SERVICES: Final = tuple(service.full_name for service in DESCRIPTORS)


class Server:
    """A running server. Made by :meth:`start`; belongs to the event loop that it was started on.

    ``tracing`` is used in place of what the configuration asks for.
    """

    def __init__(self, config: ServerConfig, *, tracing: Tracing | None = None) -> None:
        self.config = config
        self.security = Security(config)
        self.observatory = Observatory(config, DESCRIPTORS, self.security.tenants, tracing=tracing)
        self.arena = Arena(budget=config.budget_bytes, path=config.arena_file, overcommit=config.overcommit)
        self.streams = StreamRegistry(
            self.arena,
            max_streams=config.max_streams,
            lease_seconds=config.idle_lease_seconds,
            tenants=self.security.tenants,
        )
        self._generator = self._new_worker("generation")
        self.scheduler = self._new_worker("attention", beside=self._generator)
        self.addresses: tuple[str, ...] = ()
        """Where it listens, as gRPC targets: TCP first, with the actual port."""
        self._door = Door(self.security, self.observatory.insight)
        self._models = Models(config.model)
        self._projections = ProjectionSets(config.projections)
        self._health = Health(
            {"": True, _ATTENTION.full_name: True, _GENERATION.full_name: config.model is not None}
        )
        self._server = grpc.aio.server(options=_options(config))
        self._verification: warm.Verification | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The first of the addresses."""
        return self.addresses[0]

    @property
    def live(self) -> bool:
        """Whether the process need not be restarted."""
        return self._health.live

    @property
    def working(self) -> bool:
        """Whether a worker thread is alive. After :meth:`stop`: whether one had to be left behind."""
        return not (self.scheduler.ended.is_set() and self._generator.ended.is_set())

    @classmethod
    async def start(cls, config: ServerConfig, *, tracing: Tracing | None = None) -> Server:
        """A server that is listening and serving, its model and projections in memory.

        Raises:
            InvalidSpec: an address is in use, or cannot be listened on.
            ModelError, BudgetExceeded: the model or a file of projections cannot be used.
        """
        server = cls(config, tracing=tracing)
        await server.begin()
        return server

    async def begin(self) -> None:
        """Reads what it offers, listens and serves. Once; raises as :meth:`start`, and has then stopped."""
        try:
            self._check_addresses()
            workers = {"attention": self.scheduler, "generation": self._generator}
            await self.observatory.open(self.streams, workers, self._health)
            await self._generator.run(self._projections.load, cost=0)
            await self._generator.run(self._models.load, cost=0)
            verification = await self.scheduler.run(self._take_back, cost=0)
            self._register()
            self.addresses = self._bind()
            await self._server.start()
            self._health.begin()
            verification.start()
            self._verification = verification
        except BaseException:
            await self.stop(drain_seconds=0)
            raise
        self._tasks = [
            asyncio.create_task(self._watch(self.scheduler, "attention", ("", LIVENESS, *SERVICES))),
            asyncio.create_task(
                self._watch(self._generator, "generation", ("", LIVENESS, _GENERATION.full_name))
            ),
            asyncio.create_task(self._expire()),
            asyncio.create_task(self._refresh()),
        ]
        log.info(
            "rondel %s serves on %s: tier %s, %d cores, budget %d bytes, at most %d streams, "
            "messages up to %d bytes, model %s, projections %s",
            __version__,
            ", ".join(self.addresses),
            kernels.TIER,
            len(os.sched_getaffinity(0)),
            self.config.budget_bytes,
            self.config.max_streams,
            self.config.max_message_bytes,
            self.config.model or "none",
            ", ".join(self._projections.names) or "none",
        )

    def withdraw(self) -> None:
        """Health says NOT_SERVING, and everything is still served."""
        self._health.drain()

    def reload(self, config: ServerConfig) -> Changes:
        """Takes what may change from a configuration that was read again. Whatever raises has changed
        nothing."""
        changes = Changes.between(self.config, config)
        self.config = changes.config
        self.streams.max_streams = self.config.max_streams
        self.observatory.reload(self.config)
        self.security.reload()
        return changes

    async def stop(self, *, drain_seconds: float | None = None) -> None:
        """Stops: not ready, no new calls, then up to ``drain_seconds`` (default: the configuration's) for the
        calls at work, which are then ended with Draining; streams are closed, or stay in the arena's file. At
        most 2 seconds later it returns, even if a worker is still inside an operation. Repeated, it waits for
        the first."""
        if self._stopped is None:
            seconds = self.config.drain_seconds if drain_seconds is None else drain_seconds
            self._stopped = asyncio.create_task(self._stop(seconds))
        await asyncio.shield(self._stopped)

    async def _stop(self, drain_seconds: float) -> None:
        end = time.monotonic() + drain_seconds
        self._models.give_up()
        if self._verification is not None:
            self._verification.stop()
        self._health.end()
        self._door.shut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await _until(end, self._door.wait_empty())
        last = time.monotonic() + LAST_SECONDS
        if self._door.inside:
            log.warning("%d calls are ended after %g s of draining", self._door.inside, drain_seconds)
            self._door.cut()
        # What is left now are last messages on their way.
        await _until(last, self._server.stop(FLUSH_SECONDS))
        await _until(last, self._door.wait_empty())
        self.scheduler.post(self.streams.leave_all)
        await _until(last, self.observatory.close(max(0.0, min(FLUSH_SECONDS, last - time.monotonic()))))
        for name, worker in (("generation", self._generator), ("attention", self.scheduler)):
            if not await worker.stop(seconds=max(0.0, last - time.monotonic())):
                log.warning("the %s worker is inside a long operation and is left behind", name)
        with contextlib.suppress(SessionBusy):  # of a worker that was left behind: the process ends with it
            self.arena.close()
        if self.addresses:
            log.info("stopped")

    def _new_worker(self, name: str, beside: Scheduler | None = None) -> Scheduler:
        # How much waits for the other one is bounded by the number of generations, each of which takes turns.
        most = self.config.max_queue_seconds if name == "attention" else 0.0
        return Scheduler(
            name,
            queue_bytes=self.config.queue_bytes,
            queue_seconds=most or math.inf,
            stuck_seconds=self.config.stuck_seconds or math.inf,
            observer=self.observatory.observer(name),
            beside=beside,
        )

    def _take_back(self) -> warm.Verification:
        return warm.take_back(self.streams, self._projections, self.config.verify)

    def _check_addresses(self) -> None:
        if self.config.port is not None:
            check_tcp(self.config.host, self.config.port)
        if self.config.unix_path is not None:
            check_unix(self.config.unix_path)

    def _register(self) -> None:
        attention = AttentionService(self.config, self.streams, self.scheduler, self._projections)
        generation = GenerationService(
            self.config, self.arena, self.security.tenants, self._generator, self._models
        )
        for service, servicer in ((_ATTENTION, attention), (_GENERATION, generation)):
            inside = self._door.handlers(service, servicer)
            self._server.add_generic_rpc_handlers((Gate(inside, self.security.identity),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self.config.reflection:
            reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME, HEALTH), self._server)

    def _bind(self) -> tuple[str, ...]:
        addresses = []
        if self.config.tcp_address is not None:
            certificates = self.security.certificates
            credentials = None if certificates is None else certificates.credentials()
            addresses.append(bind_tcp(self._server, self.config.tcp_address, credentials))
        if self.config.unix_path is not None:
            addresses.append(bind_unix(self._server, self.config.unix_path))
        return tuple(addresses)

    async def _watch(self, scheduler: Scheduler, name: str, services: tuple[str, ...]) -> None:
        await watch(scheduler, name, services, self._health, self.config.stuck_seconds)

    async def _expire(self) -> None:
        lease = self.config.idle_lease_seconds
        while lease:
            await asyncio.sleep(min(lease / 4, 10.0))
            self.scheduler.post(partial(self._expire_now, self.streams.clock()))

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.security.reload(all_files=False)

    def _expire_now(self, asked: float) -> None:
        if count := self.streams.expire(asked):
            self.observatory.observer("attention").lapsed(count)
            log.info("%d idle streams were closed", count)


async def _until(end: float, work: Coroutine[Any, Any, object]) -> None:
    """Waits for something, but not beyond ``end`` on ``time.monotonic``."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work, max(0.0, end - time.monotonic()))


def _options(config: ServerConfig) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.max_concurrent_streams", config.max_calls_per_connection),
        ("grpc.max_allowed_incoming_connections", config.max_connections),
        # The first is what peers are told, and what they may be refused beyond; the second is never exceeded.
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        # A connection that does not speak, or not our language, is closed; the default waits two minutes.
        ("grpc.server_handshake_timeout_ms", 20_000),
        # Two servers on one port would each have half of the streams.
        ("grpc.so_reuseport", 0),
        # Clients may ping every 10 s, idle or not; the default answers that with GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # What nobody can ask for need not be kept.
        ("grpc.enable_channelz", int(config.channelz_port is not None)),
    )
