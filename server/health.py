"""grpc.health.v1, with watches that end when the server stops.

The servicer of grpcio-health-checking never ends a watch, and writes to it while it holds the lock that every
change of status needs: one client that does not read would hold up all of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

LIVENESS = "liveness"
"""The service that says whether the process must be restarted: it stays SERVING in a drain."""
NAME = pb.DESCRIPTOR.services_by_name["Health"].full_name
SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING


class Health(health_pb2_grpc.HealthServicer):
    """Serving or not, by service name; ``""`` is the server as a whole, LIVENESS the process."""

    def __init__(self, serving: Mapping[str, bool]) -> None:
        self._serving = {**serving, LIVENESS: True}
        self._failing: dict[str, frozenset[str]] = {}
        """What is wrong, and which services do not serve for it."""
        self._begun = False
        self._changed = asyncio.Event()
        self._ending = False

    @property
    def ready(self) -> bool:
        """Whether the server as a whole serves: it has begun, and has not ended."""
        return self._status("") == SERVING

    @property
    def live(self) -> bool:
        """Whether the process need not be restarted."""
        return self._status(LIVENESS) == SERVING

    def begin(self) -> None:
        """The server listens; before that only its health port can be asked."""
        self._begun = True

    def fail(self, cause: str, services: Iterable[str]) -> None:
        """These services do not serve for as long as the cause is there."""
        self._failing[cause] = frozenset(services)
        self._tell()

    def recover(self, cause: str) -> None:
        """The cause is gone. Services that fail for no other one serve again."""
        if self._failing.pop(cause, None) is not None:
            self._tell()

    def drain(self) -> None:
        """No service serves any more, but the process is well."""
        self.fail("draining", [service for service in self._serving if service != LIVENESS])

    def end(self) -> None:
        """As :meth:`drain`; watches are told so and then end."""
        self._ending = True
        self.drain()

    async def Check(  # noqa: N802 - the name is the protocol's
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.HealthCheckResponse:
        """The status now. NOT_FOUND for an unknown service."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service[:200]!r}")
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(  # noqa: N802
        self,
        request: pb.HealthCheckRequest,
        context: grpc.aio.ServicerContext[object, pb.HealthCheckResponse],
    ) -> None:
        """The status now and at every change. SERVICE_UNKNOWN for an unknown service."""
        last: int | None = None
        while True:
            changed, ending, status = self._changed, self._ending, self._status(request.service)
            if status != last:
                await context.write(pb.HealthCheckResponse(status=status))
                last = status
            if ending:
                return
            await changed.wait()

    def _tell(self) -> None:
        # A new event for each change: every watcher waits for the one that it found with the status it sent.
        self._changed.set()
        self._changed = asyncio.Event()

    def _status(self, service: str) -> int:
        serving = self._serving.get(service)
        if serving is None:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        if not serving or any(service in services for services in self._failing.values()):
            return NOT_SERVING
        return SERVING if self._begun or service == LIVENESS else NOT_SERVING
