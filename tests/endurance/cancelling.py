"""A client that cancels call after call, however far they have come: ``cancelling.py ADDRESS COUNT``."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc
import grpc.aio
import numpy as np
from rawclient import Client, Tokens
from watched import OWN_CHANNEL

from rondel.v1 import attention_pb2 as pb

TOLD_EVERY = 100


async def held_back(requests: list[pb.ImportStreamRequest]) -> AsyncIterator[pb.ImportStreamRequest]:
    """Requests, and no end of them."""
    for request in requests:
        yield request
    await asyncio.Event().wait()


async def cancel(address: str, count: int, tell: Callable[[int], None] = lambda done: None) -> None:
    """Cancel so many calls of four kinds; ``tell`` is called now and then."""
    rng = random.Random(5)
    async with grpc.aio.insecure_channel(address, options=OWN_CHANNEL) as channel:
        client = Client(channel)
        stream = await client.open()
        await client.append(stream, 0, *Tokens(np.random.default_rng(0)).kv(60))

        async def one(number: int) -> None:
            attention = client.attention
            match number % 4:
                case 0:
                    call = attention.GetStream(pb.GetStreamRequest(stream=stream))
                case 1:
                    call = attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=256))
                case 2:
                    call = attention.ImportStream(held_back([pb.ImportStreamRequest(data=b"x" * 9)]))
                case _:
                    call = attention.Decode()
                    if rng.random() < 0.5:
                        with suppress(grpc.aio.AioRpcError):  # HTTP/2 refuses what follows many resets
                            await call.read()
            await asyncio.sleep(rng.uniform(0, 0.003))
            call.cancel()
            while not call.done():
                await asyncio.sleep(0.001)

        for first in range(0, count, TOLD_EVERY):
            for begin in range(first, first + TOLD_EVERY, 10):
                await asyncio.gather(*(one(number) for number in range(begin, begin + 10)))
            await asyncio.to_thread(tell, first + TOLD_EVERY)
        with suppress(grpc.aio.AioRpcError):
            await client.close(stream)


if __name__ == "__main__":
    asyncio.run(cancel(sys.argv[1], int(sys.argv[2])))
