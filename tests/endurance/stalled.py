"""Readers who begin and then take nothing: what they hold of the server's memory, and of others' time."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import grpc.aio
import numpy as np
from active import Active
from rich.console import Console
from watched import Vitals, Watched

from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

PER_READER = 512 << 10
"""Bytes of memory that one of them may hold: some replies of an export, of 128 KiB each."""
MOST_RATIO = 1.5
LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=4096
)
"""With 4000 tokens 33 MiB: more than a connection takes before anything is read."""
PER_CONNECTION = 50
RATE = 150.0
"""Steps of others per second."""
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
"""Without the probe a client takes 64 KiB ahead of what it reads, not 5 MiB: the readers' memory is ours."""
err = Console(stderr=True, highlight=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured; times in milliseconds."""

    readers: int
    growth_bytes: int
    growth_bytes_per_reader: int
    p99_alone: float
    p99_beside: float
    p99_ratio: float


async def measure(server: Watched, readers: int, rounds: int, seconds: float) -> Measured:
    """Others are served alone and beside so many stalled readers, by turns."""
    alone: list[float] = []
    beside: list[float] = []
    growth = 0
    async with Stalled(server.address) as stalled, Active(server.address, 8) as active:
        await active.on_time(seconds, RATE)
        before = await asyncio.to_thread(server.vitals)
        for round_ in range(rounds):
            alone += await active.on_time(seconds, RATE)
            await stalled.begin(readers)
            beside += await active.on_time(seconds, RATE)
            growth = max(growth, (await asyncio.to_thread(server.vitals)).rss - before.rss)
            await stalled.end()
            await gone(server, before)
            err.print(
                f"round {round_ + 1} of {rounds}: {growth / 2**20:.1f} MiB more, "
                f"p99 {percentile(alone):.2f} ms alone, {percentile(beside):.2f} ms beside"
            )
    p99s = percentile(alone), percentile(beside)
    return Measured(readers, growth, growth // readers, *p99s, round(p99s[1] / p99s[0], 3))


async def gone(server: Watched, like: Vitals) -> None:
    """Returns when the server has no more calls at work than it had."""
    await asyncio.to_thread(server.settled, like, 30.0)


def percentile(seconds: list[float]) -> float:
    """p99 in milliseconds."""
    return round(1e3 * float(np.percentile(seconds, 99)), 3)


class Stalled:
    """Exports of a large stream that were begun and are not read."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stack = AsyncExitStack()
        self._stubs: list[AttentionServiceStub] = []
        self._stream = pb.StreamRef()
        self._calls: list[Any] = []

    async def __aenter__(self) -> Stalled:
        stub = await self._connect()
        reply = await stub.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(LARGE)))
        self._stream = pb.StreamRef(handle=reply.handle)
        rows = to_tensor(np.ones((2, 500, 2, 256), np.float32))
        for position in range(0, 4000, 500):
            await stub.AppendToken(
                pb.AppendTokenRequest(stream=self._stream, position=position, k=rows, v=rows)
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
        await self._stubs[0].CloseStream(pb.CloseStreamRequest(stream=self._stream))
        await self._stack.aclose()

    async def begin(self, count: int) -> None:
        """So many more. Returns when each has had its first bytes and the others' are on their way."""
        while len(self._stubs) * PER_CONNECTION < count:
            await self._connect()
        for number in range(count):
            stub = self._stubs[number % len(self._stubs)]
            self._calls.append(stub.ExportStream(pb.ExportStreamRequest(stream=self._stream)))
        await asyncio.gather(*(call.read() for call in self._calls))

    async def end(self) -> None:
        """They leave."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()

    async def _connect(self) -> AttentionServiceStub:
        channel = grpc.aio.insecure_channel(self._address, options=OPTIONS)
        self._stubs.append(AttentionServiceStub(await self._stack.enter_async_context(channel)))
        return self._stubs[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each half of a round")
    arguments = parser.parse_args()
    with Watched(budget_bytes=256 << 20, log_level="warning") as server:
        found = asyncio.run(measure(server, arguments.readers, arguments.rounds, arguments.seconds))
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return int(found.growth_bytes_per_reader > PER_READER or found.p99_ratio > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
