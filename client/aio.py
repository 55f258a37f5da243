"""Clients for asyncio: the twins of sync.py, of the same names and meaning. One event loop per client."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, Unpack
from weakref import WeakSet

import grpc
import grpc.aio

from rondel.client import calls, generation, operations
from rondel.client.aio_decode import AsyncDecodeCall
from rondel.client.aio_stream import AsyncStream
from rondel.client.aio_transfers import AsyncImporting
from rondel.client.batch import step_batch
from rondel.client.calls import Call
from rondel.client.channels import AsyncChannel
from rondel.client.checks import checked_timeout
from rondel.client.generation import Event, GenerateOptions, Model, Prompt
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions
from rondel.client.values import Array, Options, ServerInfo, StepOutcome
from rondel.decoder.errors import RondelError
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb


class _AsyncClosing(ABC):
    """Closed when its ``async with`` block ends."""

    @abstractmethod
    async def close(self) -> None:
        """End it. Closing again does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _AsyncClient(_AsyncClosing):
    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._channel = AsyncChannel(target, timeout, max_message_bytes)

    @property
    def target(self) -> str:
        """The server's address, as it was given."""
        return self._channel.target

    async def close(self) -> None:
        """End the connection and whatever still runs on it. Closing again does nothing."""
        await self._channel.close()


class AsyncAttentionClient(_AsyncClient, AsyncImporting[AsyncStream]):
    """Opens streams on a server at ``host:port`` or ``unix:/path``; connects at the first call.

    ``timeout``: seconds for a call, its retries included. ``max_message_bytes``: largest message that is
    sent or taken; the server has a limit of its own. May be used by many tasks of one loop at once.
    Raises InvalidSpec for what cannot be meant.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(target, timeout=timeout, max_message_bytes=max_message_bytes)
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


class AsyncGeneration(AsyncIterator[Event], _AsyncClosing):
    """A running generation: iterate for its events, or over ``text()`` for its text alone.

    Closing it, leaving its ``async with`` block or forgetting it cancels the call, and the server stops.
    """

    def __init__(self, channel: AsyncChannel, call: Call, timeout: float) -> None:
        self._channel = channel
        self._closed = False
        self._replies = channel.start(call, timeout)

    async def __anext__(self) -> Event:
        while not self._closed:
            try:
                reply = await self._replies.read()
            except grpc.aio.AioRpcError as failure:
                raise self._channel.error(failure) from None
            except asyncio.CancelledError as cancelled:
                self._replies.cancel()
                raise self._channel.cancelled(cancelled) from None
            if reply is grpc.aio.EOF:
                break
            event = generation.read_event(reply)
            if event is not None:
                return event
        raise StopAsyncIteration

    async def text(self) -> AsyncIterator[str]:
        """The pieces of the answer, as they come."""
        async for event in self:
            if not isinstance(event, generation.Started) and event.text:
                yield event.text

    async def close(self) -> None:
        """Cancel what is left. Closing again, or after the end, does nothing."""
        self._closed = True
        self._replies.cancel()

    def __del__(self) -> None:
        # grpc.aio keeps and runs a call that nobody holds any more (grpc issue 43462).
        replies = getattr(self, "_replies", None)  # absent when starting the call failed
        if replies is not None:
            with suppress(RuntimeError):  # the loop is closed, and the call with it
                replies.cancel()


class AsyncGenerationClient(_AsyncClient):
    """Has a server's language model continue prompts. Options as for AsyncAttentionClient."""

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout: float = calls.DEFAULT_GENERATION_TIMEOUT,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGeneration:
        """Start a generation: text is continued as it is, (role, content) pairs through the chat template.

        ``timeout`` is for the whole of it, in seconds. Raises InvalidSpec or InvalidRequest for options
        that cannot be sent; the server's errors are raised by the iteration.
        """
        call = generation.generate_call(prompt, options)
        return AsyncGeneration(self._channel, call, checked_timeout(timeout))

    async def models(self) -> list[Model]:
        """The server's models; the first is its default."""
        return await self._channel.run(generation.list_models())
