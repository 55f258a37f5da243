"""Building, starting and stopping a server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rondel import __version__
from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidSpec
from rondel.server.attention import AttentionService
from rondel.server.config import ServerConfig
from rondel.server.door import Door
from rondel.server.generation import GenerationService
from rondel.server.health import NAME as HEALTH
from rondel.server.health import Health
from rondel.server.scheduler import Scheduler
from rondel.server.streams import StreamRegistry
from rondel.v1 import attention_pb2, generation_pb2

log = logging.getLogger("rondel.server")

_ATTENTION = attention_pb2.DESCRIPTOR.services_by_name["AttentionService"]
_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"]
_FLUSH_SECONDS = 0.5

SERVICES = (_ATTENTION.full_name, _GENERATION.full_name)


class Server:
    """A running server. Made by :meth:`start`; belongs to the event loop that it was started on."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.arena = Arena(budget=config.budget_bytes)
        self.streams = StreamRegistry(
            self.arena, max_streams=config.max_streams, lease_seconds=config.idle_lease_seconds
        )
        self.scheduler = Scheduler("attention", queue_bytes=config.queue_bytes)
        self.addresses: tuple[str, ...] = ()
        """Where it listens, as gRPC targets: TCP first, with the actual port."""
        self._generator = Scheduler("generation", queue_bytes=config.queue_bytes)
        self._door = Door()
        self._health = Health(("", *SERVICES))
        self._server = grpc.aio.server(options=_options(config))
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The first of the addresses."""
        return self.addresses[0]

    @classmethod
    async def start(cls, config: ServerConfig) -> Server:
        """A server that is listening and serving.

        Raises:
            InvalidSpec: an address is in use, or cannot be listened on.
        """
        server = cls(config)
        try:
            server._register()
            server.addresses = server._bind()
            await server._server.start()
        except BaseException:
            await server.stop(drain_seconds=0)
            raise
        server._tasks = [
            asyncio.create_task(server._watch(server.scheduler, "attention", ("", *SERVICES))),
            asyncio.create_task(server._watch(server._generator, "generation", ("", _GENERATION.full_name))),
            asyncio.create_task(server._expire()),
        ]
        log.info(
            "rondel %s serves on %s: tier %s, %d cores, budget %d bytes, at most %d streams, "
            "messages up to %d bytes, model %s",
            __version__,
            ", ".join(server.addresses),
            kernels.TIER,
            len(os.sched_getaffinity(0)),
            config.budget_bytes,
            config.max_streams,
            config.max_message_bytes,
            config.model or "none",
        )
        return server

    async def stop(self, *, drain_seconds: float | None = None) -> None:
        """Stops: not ready, no new calls, then up to ``drain_seconds`` (default: the configuration's) for the
        calls at work, which are then cancelled; streams are closed. Repeated, it waits for the first."""
        if self._stopped is None:
            seconds = self.config.drain_seconds if drain_seconds is None else drain_seconds
            self._stopped = asyncio.create_task(self._stop(seconds))
        await asyncio.shield(self._stopped)

    async def _stop(self, drain_seconds: float) -> None:
        end = time.monotonic() + drain_seconds
        self._health.end()
        self._door.shut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._door.wait_empty(), max(0.0, end - time.monotonic()))
        if self._door.inside:
            log.warning("%d calls are cancelled after %g s of draining", self._door.inside, drain_seconds)
        # What is left now are calls out of time, and watches whose last message is on its way.
        await self._server.stop(None if self._door.inside else _FLUSH_SECONDS)
        await self._door.wait_empty()
        await self._generator.stop()
        self.scheduler.post(self.streams.close_all)
        await self.scheduler.stop()
        log.info("stopped")

    def _register(self) -> None:
        attention = AttentionService(self.config, self.streams, self.scheduler, __version__)
        generation = GenerationService(self.config, self.arena, self._generator)
        self._server.add_generic_rpc_handlers(
            (self._door.handlers(_ATTENTION, attention), self._door.handlers(_GENERATION, generation))
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*SERVICES, reflection.SERVICE_NAME, HEALTH), self._server)

    def _bind(self) -> tuple[str, ...]:
        addresses = []
        if self.config.tcp_address is not None:
            try:
                port = self._server.add_insecure_port(self.config.tcp_address)
            except RuntimeError as error:
                raise InvalidSpec(
                    f"cannot listen on {self.config.tcp_address}: {error}", field="port"
                ) from error
            addresses.append(f"{self.config.tcp_address.rpartition(':')[0]}:{port}")
        if self.config.unix_path is not None:
            addresses.append(_bind_unix(self._server, self.config.unix_path))
        return tuple(addresses)

    async def _watch(self, scheduler: Scheduler, name: str, services: tuple[str, ...]) -> None:
        """A server whose worker is gone says so."""
        await scheduler.ended.wait()
        log.critical("the %s worker has ended", name)
        self._health.fail(services)

    async def _expire(self) -> None:
        lease = self.config.idle_lease_seconds
        while lease:
            await asyncio.sleep(min(lease / 4, 10.0))
            self.scheduler.post(self._expire_now)

    def _expire_now(self) -> None:
        if count := self.streams.expire():
            log.info("%d idle streams were closed", count)


def serve(config: ServerConfig, *, on_ready: Callable[[Server], None] | None = None) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it within ``drain_seconds``. A second signal ends the
    process at once. ``on_ready`` is called when it is serving. For a process of its own, on the main thread.

    Raises:
        InvalidSpec: an address is in use, or cannot be listened on.
    """
    # Before any object of grpc.aio exists: configuring it later can deadlock with their finalisers.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(config, on_ready))


async def _serve(config: ServerConfig, on_ready: Callable[[Server], None] | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("second %s: ending at once", number.name)
            os._exit(128 + number)
        log.info("%s: stopping", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    server = await Server.start(config)
    try:
        if on_ready is not None:
            on_ready(server)
        await stopping.wait()
    finally:
        await server.stop()


def _options(config: ServerConfig) -> tuple[tuple[str, int], ...]:
    return (
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.max_concurrent_streams", config.max_calls_per_connection),
        # Two servers on one port would each have half of the streams.
        ("grpc.so_reuseport", 0),
        # Clients may ping every 10 s, idle or not; the default answers that with GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    )


def _bind_unix(server: grpc.aio.Server, path: str) -> str:
    """Listens on a unix socket that only this user can open."""
    # gRPC replaces whatever socket is there, and a server that is using it would go on unseen.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            pass
        else:
            raise InvalidSpec(f"another server listens on {path}", field="unix_path")
    address = f"unix:{Path(path).absolute()}"
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise InvalidSpec(f"cannot listen on {address}: {error}", field="unix_path") from error
    finally:
        os.umask(mask)
    return address
