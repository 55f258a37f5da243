"""Leases: a stream that somebody has named, or is being given, is not idle."""

import asyncio

import pytest
from held import Clock, Held
from rawclient import Client
from test_export import LARGE, begun, filled
from transports import tenant

from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1.tenant_pb2 import ListStreamsRequest


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=64 << 20, idle_lease_seconds=0.2)


@pytest.fixture
def clock(server: Server) -> Clock:
    """What leases are measured by; how often they are looked at it does not say."""
    server.streams.clock = Clock()
    return server.streams.clock


async def looked_at(server: Server, times: int) -> None:
    """Returns when leases have been looked at so often, or are about to be."""
    post, left = server.scheduler.post, [times]

    def counted(*arguments: object, **options: object) -> None:
        left[0] -= 1
        post(*arguments, **options)  # type: ignore[arg-type]

    server.scheduler.post = counted  # type: ignore[method-assign]
    while left[0] > 0:
        await asyncio.sleep(0.005)
    server.scheduler.post = post  # type: ignore[method-assign]


async def test_a_stream_whose_call_waits_is_not_idle(client: Client, server: Server, clock: Clock) -> None:
    """The worker was busy for longer than the lease; the stream was named all the while."""
    named, idle = await client.open(), await client.open()
    async with Held(server) as held:
        await looked_at(server, 1)  # before the call, so it is carried out before it
        clock.now += 0.1
        call = await held.queued(client.get(named), 1)
        clock.now += 10.0
        await looked_at(server, 1)
    assert (await call).committed_length == 0
    while (await client.info()).streams == 2:
        await asyncio.sleep(0.01)
    await client.get(named)
    assert server.streams.of(tenant()).look_up(idle.handle) is None


async def test_a_stream_that_is_being_exported_is_not_idle(
    client: Client, server: Server, clock: Clock
) -> None:
    stream = await filled(client, LARGE, 4000)
    call = await begun(client, stream, 65536)
    for _ in range(6):  # pieces are on their way at first, and name the stream
        clock.now += 10.0
        await looked_at(server, 2)
    assert server.streams.of(tenant()).look_up(stream.handle) is not None
    assert len((await call.read()).data) == 65536
    call.cancel()
    clock.now += 10.0
    while (await client.info()).streams:
        await asyncio.sleep(0.01)


async def test_a_stream_that_was_named_too_late_is_gone(client: Client, server: Server, clock: Clock) -> None:
    stream = await client.open()
    clock.now += 0.2
    await looked_at(server, 2)
    response = await client.attention.ListStreams(ListStreamsRequest())
    assert [each.handle for each in response.streams] == []
    assert server.streams.of(tenant()).look_up(stream.handle) is None
