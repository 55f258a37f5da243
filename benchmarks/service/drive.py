"""Raw calls to both servers, with the same bytes: requests encoded beforehand, replies not decoded.

So what a client library costs is in none of the times, and what is left is what the server adds to gRPC.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)

Send = Callable[[bytes], Awaitable[bytes]]


def connect(target: str) -> grpc.aio.Channel:
    """A connection of its own."""
    return grpc.aio.insecure_channel(target, options=OPTIONS)


class Bidirectional:
    """One bidirectional call."""

    def __init__(self, channel: grpc.aio.Channel, method: str) -> None:
        self._call: Any = channel.stream_stream(method)()

    async def write(self, message: bytes) -> None:
        """Sends a message."""
        await self._call.write(message)

    async def read(self) -> bytes:
        """The next message. Raises SystemExit when there is none."""
        message = await self._call.read()
        if message is grpc.aio.EOF:
            raise SystemExit(f"the call has ended: {await self._call.code()} {await self._call.details()}")
        received: bytes = message
        return received

    async def exchange(self, message: bytes) -> bytes:
        """Sends a message and reads one."""
        await self.write(message)
        return await self.read()

    async def end(self) -> None:
        """Ends the call."""
        await self._call.done_writing()
        while await self._call.read() is not grpc.aio.EOF:
            pass


async def latencies(send: Send, requests: Sequence[bytes]) -> list[float]:
    """Seconds of each request, one after the other."""
    seconds = []
    for request in requests:
        began = time.perf_counter()
        await send(request)
        seconds.append(time.perf_counter() - began)
    return seconds


async def together(send: Send, requests: Sequence[bytes]) -> float:
    """Seconds until all are answered that were sent at the same time."""
    began = time.perf_counter()
    await asyncio.gather(*(send(request) for request in requests))
    return time.perf_counter() - began


async def pipelined(
    lanes: Sequence[tuple[Bidirectional, Sequence[bytes]]], answers: Callable[[bytes], int]
) -> float:
    """Seconds until all is answered, when each call has all its requests on the way at once; ``answers`` says
    how many there are in a message."""

    async def write(call: Bidirectional, requests: Sequence[bytes]) -> None:
        for request in requests:
            await call.write(request)

    async def read(call: Bidirectional, count: int) -> None:
        while count > 0:
            count -= answers(await call.read())

    began = time.perf_counter()
    both = [(write(call, requests), read(call, len(requests))) for call, requests in lanes]
    await asyncio.gather(*(side for pair in both for side in pair))
    return time.perf_counter() - began


def unary(channel: grpc.aio.Channel, method: str) -> Send:
    """A unary method on raw bytes."""
    call: Any = channel.unary_unary(method)

    async def send(request: bytes) -> bytes:
        reply: bytes = await call(request)
        return reply

    return send
