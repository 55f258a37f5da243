"""The port for probes: what it answers before, while and after the server serves, and nothing more."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from held import Held
from rawclient import Client, Tokens
from transports import listening

from rondel.decoder.errors import InvalidSpec
from rondel.server.app import SERVICES, Server
from rondel.server.config import ServerConfig
from rondel.server.health import LIVENESS

Probe = Callable[[Server], Client]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, health_port=0, budget_bytes=64 << 20, drain_seconds=20.0)


async def check(client: Client, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(client.channel)
    return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


@pytest_asyncio.fixture
async def probe() -> AsyncIterator[Callable[[Server], Client]]:
    """Makes clients of the port, which has no TLS however the server is reached."""
    async with AsyncExitStack() as stack:

        def make(server: Server) -> Client:
            assert server.observatory.health_address is not None
            channel = grpc.aio.insecure_channel(server.observatory.health_address)
            stack.push_async_callback(channel.close)
            return Client(channel)

        yield make


async def test_it_answers_checks_and_nothing_else(server: Server, probe: Probe) -> None:
    client = probe(server)
    assert await check(client) == await check(client, LIVENESS) == await check(client, SERVICES[0]) == SERVING
    assert await check(client, SERVICES[1]) == NOT_SERVING  # there is no model
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
    for call in (client.info(), watch.read()):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_it_is_there_while_the_server_starts(config: ServerConfig, probe: Probe) -> None:
    server = Server(listening(config))
    async with Held(server):  # so that it cannot look into its arena
        beginning = asyncio.create_task(server.begin())
        while server.observatory.health_address is None:
            await asyncio.sleep(0)
        client = probe(server)
        assert (await check(client), await check(client, LIVENESS)) == (NOT_SERVING, SERVING)
    await beginning
    assert await check(client) == SERVING
    await server.stop()


async def test_it_is_there_while_the_server_drains(
    server: Server, client: Client, probe: Probe, tokens: Tokens
) -> None:
    other = probe(server)
    stream = await client.open()
    async with Held(server):
        waiting = asyncio.create_task(client.append(stream, 0, *tokens.kv(3)))
        while not server._door.inside:
            await asyncio.sleep(0)
        stopping = asyncio.create_task(server.stop())
        while await check(other) == SERVING:
            await asyncio.sleep(0)
        assert (await check(other), await check(other, LIVENESS)) == (NOT_SERVING, SERVING)
    assert (await waiting).committed_length == 3
    await stopping
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(other)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_port_that_is_taken_is_named(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(InvalidSpec, match="cannot listen on") as caught:
        await Server.start(ServerConfig(port=0, health_port=port, budget_bytes=4 << 20))
    assert caught.value.field == "health_port"
