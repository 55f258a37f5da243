"""grpc.health.v1 on a port of its own, in the clear: for probes that know no TLS, as those of Kubernetes.

Only Check is there. A Watch stays for as long as its caller likes, and here nobody is asked who they are.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2 as pb

from rondel.decoder.errors import InvalidSpec
from rondel.server.health import NAME, Health
from rondel.server.listening import bind_tcp, check_tcp

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 1024),
    ("grpc.max_concurrent_streams", 4),
    # A probe connects, asks and leaves.
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 60_000),
)


class HealthPort:
    """A server that answers Check. It is there while the main one only starts, and while it drains."""

    def __init__(self, server: grpc.aio.Server, address: str) -> None:
        self._server = server
        self.address = address

    @classmethod
    async def start(cls, host: str, port: int, health: Health) -> HealthPort:
        """Raises InvalidSpec: it cannot be listened there."""
        try:
            check_tcp(host, port)
        except InvalidSpec as error:
            raise InvalidSpec(error.message, field="health_port") from error
        server = grpc.aio.server(options=_OPTIONS)
        check = grpc.unary_unary_rpc_method_handler(
            health.Check,
            request_deserializer=pb.HealthCheckRequest.FromString,
            response_serializer=pb.HealthCheckResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"Check": check}),))
        address = bind_tcp(server, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        await server.start()
        return cls(server, address)

    async def close(self) -> None:
        """Ends it at once."""
        await self._server.stop(None)
