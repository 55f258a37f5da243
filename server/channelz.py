"""gRPC's own view of its servers, connections and streams, on a port of its own."""

from __future__ import annotations

import grpc
from grpc_channelz.v1 import channelz

from rondel.decoder.errors import InvalidSpec


class Channelz:
    """A server with grpc.channelz.v1. It tells of the whole process."""

    def __init__(self, server: grpc.aio.Server, address: str) -> None:
        self._server = server
        self.address = address

    @classmethod
    async def start(cls, host: str, port: int) -> Channelz:
        """Raises InvalidSpec: it cannot be listened there."""
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        channelz.add_channelz_servicer(server)
        shown = f"[{host}]" if ":" in host else host
        try:
            port = server.add_insecure_port(f"{shown}:{port}")
        except RuntimeError as error:
            raise InvalidSpec(f"cannot listen on {shown}:{port}", field="channelz_port") from error
        await server.start()
        return cls(server, f"{shown}:{port}")

    async def close(self) -> None:
        """Ends it at once."""
        await self._server.stop(None)
