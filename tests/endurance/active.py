"""A few streams that are used, and how long their calls take."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import numpy as np

from rondel.client import AsyncAttentionClient, AsyncStream
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=1, query_heads=8, kv_heads=2, head_dim=64, window=512)


class Active:
    """Streams of a server, stepped one token at a time. Used within one event loop."""

    def __init__(self, address: str, count: int) -> None:
        self._client = AsyncAttentionClient(address)
        self._count = count
        self._streams: list[AsyncStream] = []
        rng = np.random.default_rng(0)
        self._rows = [rng.standard_normal((1, heads, 64), np.float32) for heads in (8, 2, 2)]

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._streams = [await self._client.open(SPEC) for _ in range(self._count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def in_turn(self, seconds: float) -> list[float]:
        """Seconds of each step, one at a time, the streams taking turns."""
        taken = []
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await self._streams[len(taken) % self._count].step(0, *self._rows)
            taken.append(time.perf_counter() - began)
        return taken

    async def on_time(self, seconds: float, rate: float) -> list[float]:
        """Seconds of each step from the time it was due, ``rate`` of them per second; streams take turns."""
        taken: list[float] = []
        start = time.perf_counter()

        async def one(first: int) -> None:
            for number in range(first, int(seconds * rate), self._count):
                due = start + number / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await self._streams[first].step(0, *self._rows)
                taken.append(time.perf_counter() - due)

        await asyncio.gather(*(one(first) for first in range(self._count)))
        return taken
