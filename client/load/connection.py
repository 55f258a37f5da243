"""A client that can also do what a load generator does to its server on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from rondel.client import calls
from rondel.client.access import AccessOptions
from rondel.client.aio import AsyncAttentionClient
from rondel.client.calls import ask
from rondel.decoder.errors import StreamClosed, StreamNotFound
from rondel.v1 import attention_pb2 as pb


class Connection(AsyncAttentionClient):
    """An ``AsyncAttentionClient`` whose connection can be broken, and that closes streams by their handles.

    Made within the running loop.
    """

    def __init__(self, target: str, *, timeout: float, **access: Unpack[AccessOptions]) -> None:
        super().__init__(target, timeout=timeout, **access)
        self.breaks = 0
        """How often the connection was broken."""
        self._whole = 0
        self._none_whole = asyncio.Event()
        self._not_breaking = asyncio.Event()
        for event in (self._none_whole, self._not_breaking):
            event.set()

    @asynccontextmanager
    async def unbroken(self) -> AsyncIterator[None]:
        """Within the block ``reconnect`` waits: for calls that cannot be made again, opening and closing.

        A client that has lost the answer to an open has no handle, so the stream would be left behind.
        """
        while not self._not_breaking.is_set():
            await self._not_breaking.wait()
        self._whole += 1
        self._none_whole.clear()
        try:
            yield
        finally:
            self._whole -= 1
            if not self._whole:
                self._none_whole.set()

    async def reconnect(self) -> None:
        """Break the connection: calls under way fail as ServerUnavailable, streams stay as they are."""
        self._not_breaking.clear()
        try:
            await self._none_whole.wait()
            self.breaks += 1
            await self._channel.reconnect()
        finally:
            self._not_breaking.set()

    async def close_handle(self, handle: str) -> bool:
        """Close the stream of another client; whether there was one."""
        request = pb.CloseStreamRequest(stream=pb.StreamRef(handle=handle))
        try:
            await self._channel.run(ask(calls.CLOSE, request))
        except (StreamClosed, StreamNotFound):
            return False
        return True
