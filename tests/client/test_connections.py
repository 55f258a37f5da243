"""A client that is closed has no connection left, whatever became of its calls."""

import asyncio
import gc
import io
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from transports import to

from rondel.client import AsyncAttentionClient, AsyncGenerationClient, AttentionClient
from rondel.decoder.errors import RondelError
from rondel.decoder.spec import StreamSpec

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system has no /proc")
SPEC = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, window=8)


def sockets() -> int:
    """This process's open sockets."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nobody comes by to collect cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refused(address: str) -> None:
    async with AsyncAttentionClient(address, **to(address)) as client, await client.open(SPEC) as stream:
        for _ in range(3):
            with suppress(RondelError):
                await stream.truncate(0)
                await stream.attend(0, np.zeros((1, 1, 8), np.float32))
            with suppress(RondelError):
                await client.open(from_prefix="nobody's")


async def refused_exports(address: str) -> None:
    async with AsyncAttentionClient(address, **to(address)) as client:
        for _ in range(3):
            with suppress(RondelError):
                await client.export_stream("nobody's", io.BytesIO())


async def refused_generations(address: str) -> None:
    async with AsyncGenerationClient(address, **to(address)) as client:
        for _ in range(3):
            with suppress(RondelError):
                async for _ in client.generate("x"):
                    pass


async def cancelled(address: str) -> None:
    async with AsyncAttentionClient(address, **to(address)) as client:
        await client.info()
        for _ in range(3):
            task = asyncio.create_task(client.info())
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def none_left(before: int) -> None:
    """Returns when there are as many as before: connections end on a thread of gRPC's."""
    end = time.monotonic() + 10
    while sockets() > before and time.monotonic() < end:
        time.sleep(0.005)
    assert sockets() == before


@needs_proc
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("use", [refused, refused_exports, refused_generations, cancelled])
def test_of_asyncio(address: str, use: Callable[[str], Coroutine[object, object, None]]) -> None:
    before = sockets()
    for _ in range(3):
        asyncio.run(use(address))
        none_left(before)


@needs_proc
@pytest.mark.usefixtures("no_collector")
def test_of_threads(address: str) -> None:
    before = sockets()
    for _ in range(3):
        with AttentionClient(address, **to(address)) as client:
            for _ in range(3):
                with suppress(RondelError):
                    client.open(from_prefix="nobody's")
        none_left(before)
