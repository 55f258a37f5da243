"""All that watches a server, made from its configuration: metrics, the log of calls, traces, admin ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from google.protobuf.descriptor import ServiceDescriptor

from rondel import __version__
from rondel.decoder import kernels
from rondel.decoder.errors import InvalidSpec
from rondel.server.call_log import CallLog
from rondel.server.config import ServerConfig
from rondel.server.health import Health
from rondel.server.insight import Insight, Watcher
from rondel.server.observer import DEAF, Observer
from rondel.server.scheduler import Scheduler
from rondel.server.streams import StreamRegistry
from rondel.server.tenants import Tenants

if TYPE_CHECKING:
    from rondel.server.admin import AdminPort, Page
    from rondel.server.channelz import Channelz
    from rondel.server.health_port import HealthPort
    from rondel.server.metrics import Metrics
    from rondel.server.tracing import Tracing

log = logging.getLogger("rondel.server")


class Observatory:
    """Belongs to one server. What its configuration leaves out costs nothing and is not even imported.

    ``tracing`` replaces what the configuration and the environment ask for.

    Raises:
        InvalidSpec: traces are asked for, but OpenTelemetry is not installed.
    """

    def __init__(
        self,
        config: ServerConfig,
        services: Sequence[ServiceDescriptor],
        tenants: Tenants,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self._config = config
        self._tracing = _tracing() if tracing is None and config.tracing else tracing
        self._calls = CallLog(config.log_calls)
        self.metrics: Metrics | None = None
        self._admin: AdminPort | None = None
        self._channelz: Channelz | None = None
        self._health_port: HealthPort | None = None
        watchers: list[Watcher] = [] if self._tracing is None else [self._tracing]
        self._observer: Observer = DEAF
        if config.admin_port is not None:
            from rondel.server.metrics import Metrics
            from rondel.server.rpc_metrics import RpcMetrics
            from rondel.server.tally import Tally

            self.metrics = Metrics(version=__version__, tier=kernels.TIER, tenants=lambda: tenants.named)
            self._observer = self.metrics.worker("attention")
            watchers += [RpcMetrics(self.metrics.registry, services), Tally(self._observer)]
        self.insight = Insight([*watchers, self._calls])
        """For the door."""

    @property
    def admin_address(self) -> str | None:
        """``host:port`` of the admin port, the actual one."""
        return None if self._admin is None else self._admin.address

    @property
    def channelz_address(self) -> str | None:
        """``host:port`` of channelz, the actual one."""
        return None if self._channelz is None else self._channelz.address

    @property
    def health_address(self) -> str | None:
        """``host:port`` of the health port, the actual one."""
        return None if self._health_port is None else self._health_port.address

    def observer(self, worker: str) -> Observer:
        """Who is told what a worker does."""
        if self.metrics is None:
            return DEAF
        return self._observer if worker == "attention" else self.metrics.worker(worker)

    async def open(self, streams: StreamRegistry, workers: Mapping[str, Scheduler], health: Health) -> None:
        """Opens the ports beside the main one. Raises InvalidSpec: one cannot be listened on."""
        if self._config.health_port is not None:
            from rondel.server.health_port import HealthPort

            self._health_port = await HealthPort.start(self._config.host, self._config.health_port, health)
        if self.metrics is not None and self._config.admin_port is not None:
            from prometheus_client import GCCollector, ProcessCollector, make_wsgi_app

            from rondel.server import admin
            from rondel.server.gauges import Gauges

            registry = self.metrics.registry
            ProcessCollector(registry=registry)
            GCCollector(registry=registry)
            registry.register(Gauges(self.metrics, streams, workers))
            on_loop = partial(admin.ask, asyncio.get_running_loop())
            self._admin = admin.AdminPort(
                self._config.admin_host,
                self._config.admin_port,
                {
                    ("GET", "/healthz"): on_loop(lambda: _said(health.live)),
                    ("GET", "/readyz"): on_loop(lambda: _said(health.ready)),
                    ("GET", "/debug/threads"): admin.threads,
                    ("GET", "/debug/tasks"): on_loop(admin.tasks),
                    ("POST", "/debug/trim"): admin.trim,
                },
                {("GET", "/metrics"): make_wsgi_app(registry)},
            )
        if self._config.channelz_port is not None:
            from rondel.server.channelz import Channelz

            self._channelz = await Channelz.start(self._config.admin_host, self._config.channelz_port)
        ports = {
            "health": self.health_address,
            "admin": self.admin_address,
            "channelz": self.channelz_address,
        }
        for what, address in ports.items():
            if address is not None:
                log.info("%s port on %s", what, address)

    def reload(self, config: ServerConfig) -> None:
        """Takes what may change while the server runs."""
        self._calls.which = config.log_calls

    def reloaded(self, good: bool) -> None:
        """The configuration was read again, and taken or not."""
        if self.metrics is not None:
            self.metrics.reloaded(good)

    async def close(self, seconds: float) -> None:
        """Closes the ports, and sends the last traces for at most so long."""
        if self._admin is not None:
            await asyncio.to_thread(self._admin.close)
        if self._channelz is not None:
            await self._channelz.close()
        if self._health_port is not None:
            await self._health_port.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close, seconds)


async def _said(good: bool) -> Page:
    from rondel.server.admin import Page

    return Page("200 OK", "ok\n") if good else Page("503 Service Unavailable", "not serving\n")


def _tracing() -> Tracing:
    try:
        from rondel.server.tracing import Tracing
    except ModuleNotFoundError as error:
        raise InvalidSpec(
            f"tracing needs OpenTelemetry: install rondel[otel] ({error})", field="tracing"
        ) from error
    return Tracing.from_environment()
