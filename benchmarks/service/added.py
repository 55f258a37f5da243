"""What a step costs a user beyond its kernels: in this process, over a unix socket and over TCP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Final

from rondel.client.aio import AsyncAttentionClient
from service.native import Local
from service.processes import Addresses
from service.work import spec_of, tokens
from shapes import Shape

COUNTS: Final = (1, 8, 64)
"""Streams in a batch."""
_EACH: Final = 10

Batch = Callable[[], Awaitable[object]]


async def measure(addresses: Addresses, shape: Shape, rounds: int) -> dict[str, dict[int, float]]:
    """Microseconds of a batch over those inside its kernels, by transport and number of streams: medians over
    rounds in which all have their turn, through the library's own calls (``run_steps``, ``step_batch``).

    Raises:
        SystemExit, RondelError: a step failed.
    """
    local = Local(shape, COUNTS[-1])
    targets = {"unix": addresses.unix, "tcp": addresses.tcp}
    clients = {name: AsyncAttentionClient(target) for name, target in targets.items()}
    batches = {
        (name, count): await _remote(client, shape, count)
        for name, client in clients.items()
        for count in COUNTS
    }
    samples: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for count in COUNTS:
            whole, inside = local.median_of(count, _EACH)
            samples.setdefault(("in-process", count), []).append(whole - inside)
            for name in clients:
                seconds = await _median(batches[name, count])
                samples.setdefault((name, count), []).append(seconds - inside)
    for client in clients.values():
        await client.close()
    local.close()
    return {
        name: {count: round(1e6 * median(samples[name, count]), 1) for count in COUNTS}
        for name in ("in-process", *clients)
    }


async def _remote(client: AsyncAttentionClient, shape: Shape, count: int) -> Batch:
    """A step of so many new streams of a server."""
    spec = spec_of(shape)
    _, k, v = tokens(shape, shape.keys, 1)
    streams = [await client.open(spec) for _ in range(count)]
    for stream in streams:
        await stream.append(0, k, v)
    parts = [[array] * count for array in tokens(shape, 1, 2)]

    async def step() -> None:
        for outcome in await client.step_batch(0, streams, *parts):
            if outcome.error is not None:
                raise outcome.error

    return step


async def _median(batch: Batch) -> float:
    seconds = []
    for _ in range(_EACH):
        began = time.perf_counter()
        await batch()
        seconds.append(time.perf_counter() - began)
    return median(seconds)
