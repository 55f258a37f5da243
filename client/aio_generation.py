"""Text from a server's language model, for asyncio: the twin of sync_generation.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Unpack

import grpc.aio

from rondel.client import calls, generation
from rondel.client.aio_base import AsyncClient, AsyncClosing
from rondel.client.calls import Call
from rondel.client.channels import AsyncChannel
from rondel.client.checks import checked_timeout
from rondel.client.generation import Event, GenerateOptions, Model, Prompt


class AsyncGeneration(AsyncIterator[Event], AsyncClosing):
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


class AsyncGenerationClient(AsyncClient):
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
