"""What the transport itself lets through: metadata, connections, compressed messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from rawclient import Client
from transports import Transport

from rondel.server.app import Server
from rondel.server.bounds import METADATA_BYTES
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]


@pytest.mark.every_transport
async def test_metadata_is_bounded(client: Client) -> None:
    async def info(size: int) -> grpc.StatusCode:
        metadata = (("x-filler", "x" * size),)
        try:
            await client.attention.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    # What gRPC sends by itself takes some of it.
    assert await info(METADATA_BYTES - 1024) == grpc.StatusCode.OK
    for size in (METADATA_BYTES, 4 * METADATA_BYTES, 1 << 20):
        assert await info(size) in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
        assert await info(0) == grpc.StatusCode.OK


class TestConnections:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=4 << 20, max_connections=2)

    async def test_no_more_than_that_many(
        self, server: Server, connect: Connect, transport: Transport
    ) -> None:
        first, second = connect(server.address), connect(server.address)
        await first.info()
        await second.info()
        third = connect(server.address)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await third.attention.GetServerInfo(pb.GetServerInfoRequest(), timeout=2)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        await first.info()
        await second.channel.close()
        while True:  # the test's time limit is the failure
            try:
                await third.info()
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.05)


async def test_a_message_cannot_grow_beyond_the_limit_by_being_unpacked(
    server: Server, connect: Connect, transport: Transport
) -> None:
    """64 MiB of zeros are 64 KiB on the wire."""
    channel = transport.channel(server.address, [("grpc.max_send_message_length", -1)])
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/rondel.v1.AttentionService/AppendToken")(
                bytes(64 << 20), compression=grpc.Compression.Gzip
            )
    finally:
        await channel.close()
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in str(caught.value.details())
    assert (await connect(server.address).info()).streams == 0
