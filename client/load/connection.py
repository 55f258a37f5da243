"""A client that can also do what a load generator does to its server on purpose."""

from __future__ import annotations

from typing import Unpack

from rondel.client import calls
from rondel.client.access import AccessOptions
from rondel.client.aio import AsyncAttentionClient
from rondel.client.calls import ask
from rondel.decoder.errors import StreamClosed, StreamNotFound
from rondel.v1 import attention_pb2 as pb


class Connection(AsyncAttentionClient):
    """An ``AsyncAttentionClient`` whose connection can be broken, and that closes streams by handle."""

    def __init__(self, target: str, *, timeout: float, **access: Unpack[AccessOptions]) -> None:
        super().__init__(target, timeout=timeout, **access)
        self.breaks = 0
        """How often the connection was broken."""

    async def reconnect(self) -> None:
        """Break the connection: calls under way fail as ServerUnavailable, streams stay as they are."""
        self.breaks += 1
        await self._channel.reconnect()

    async def close_handle(self, handle: str) -> bool:
        """Close a stream, perhaps of another client; whether there was one."""
        request = pb.CloseStreamRequest(stream=pb.StreamRef(handle=handle))
        try:
            await self._channel.run(ask(calls.CLOSE, request))
        except (StreamClosed, StreamNotFound):
            return False
        return True
