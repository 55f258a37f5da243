"""Clients for asyncio: the twins of sync.py, of the same names and meaning. One event loop per client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack
from weakref import WeakSet

from rondel.client import calls, operations
from rondel.client.access import AccessOptions
from rondel.client.aio_base import AsyncClient
from rondel.client.aio_decode import AsyncDecodeCall
from rondel.client.aio_stream import AsyncStream
from rondel.client.aio_transfers import AsyncImporting
from rondel.client.batch import step_batch
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions
from rondel.client.values import Array, ListedStream, Options, ServerInfo, StepOutcome
from rondel.decoder.errors import RondelError
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb


class AsyncAttentionClient(AsyncClient, AsyncImporting[AsyncStream]):
    """Opens streams on a server at ``host:port`` or ``unix:/path``; connects at the first call.

    ``timeout``: seconds for a call, its retries included. ``max_message_bytes``: largest message that is
    sent or taken; the server has a limit of its own. ``access``: see AccessOptions. May be used by many
    tasks of one loop at once. Raises InvalidSpec for what cannot be meant.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(target, timeout=timeout, max_message_bytes=max_message_bytes, **access)
        self._opened = Opened()
        self._limits = Limits(max_message_bytes)
        self._calls: WeakSet[AsyncDecodeCall] = WeakSet()

    async def open(self, spec: StreamSpec | None = None, **options: Unpack[OpenOptions]) -> AsyncStream:
        """``AttentionClient.open``."""
        steps = operations.open_stream(spec, self._limits, self._opened, **options)
        return self._stream(await self._channel.run(steps))

    async def attach(self, handle: str) -> AsyncStream:
        """Take over the stream of a handle, from whoever has used it: only what all its layers have stays,
        and its other users get StaleGeneration. Raises StreamNotFound, StreamClosed."""
        return self._stream(await self._channel.run(operations.attach_stream(handle, self._limits)))

    def decode(self) -> AsyncDecodeCall:
        """A long-lived call for the steps of many streams, which is to be closed: ``async with``."""
        call = AsyncDecodeCall(self._channel, self._limits, self._opened)
        self._calls.add(call)
        return call

    def _stream(self, reply: pb.OpenStreamResponse) -> AsyncStream:
        return AsyncStream(self._channel, reply, self._opened, self._limits.in_force)

    async def info(self) -> ServerInfo:
        """What the server is and allows."""
        return await self._channel.run(operations.server_info(self._limits))

    async def list_streams(self) -> list[ListedStream]:
        """The streams of this client's tenant, oldest first, whoever opened them."""
        return await self._channel.run(operations.list_streams())

    async def step_batch(
        self,
        layer: int,
        streams: Sequence[AsyncStream],
        qs: Sequence[Array],
        ks: Sequence[Array],
        vs: Sequence[Array],
        *,
        options: Sequence[Options] | None = None,
        return_lse: bool = False,
    ) -> list[StepOutcome]:
        """``step`` one layer of many streams in one call; each has its own output or error."""
        return await self._channel.run(step_batch(layer, streams, qs, ks, vs, options, return_lse))

    async def close(self) -> None:
        """Close the streams that are still open, then the connection. Closing again does nothing."""
        for call in list(self._calls):
            await call.close()
        for steps in operations.close_all(self._opened):
            with suppress(RondelError):  # an unreachable server frees them when their lease ends
                await self._channel.run(steps)
        await super().close()
