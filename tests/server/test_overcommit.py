"""A server that promises more memory than it has: a call that finds none says so and changes nothing."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from rawclient import Client, Failure, Tokens, item
from transports import to

from rondel.client import AsyncAttentionClient
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig

LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=1024
)
"""Pages of 0.5 MiB: 16 for all of a stream, 8 MiB."""


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=16 << 20, overcommit=3.0)


async def test_growth_without_room_is_refused_and_others_go_on(client: Client, server: Server) -> None:
    tokens = Tokens(np.random.default_rng(0), LARGE)
    streams = [await client.open(LARGE) for _ in range(3)]
    k, v = tokens.kv(300)
    for stream in streams[:2]:
        await client.append(stream, 0, k, v)
    await client.append(streams[2], 0, k[:, :100], v[:, :100])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.append(streams[2], 100, *tokens.kv(900))
    failure = Failure.of_call(caught.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXCEEDED")
    state = await client.get(streams[2])
    assert (state.committed_length, state.high_water, list(state.layer_lengths)) == (100, 100, [100, 100])
    q, k1, v1 = tokens.qkv(1)
    results = await client.step(0, *(item(stream, 300, q, k1, v1) for stream in streams[:2]))
    assert [result.status.code for result in results] == [0, 0]
    for stream in streams[:2]:
        await client.close(stream)
    assert (await client.append(streams[2], 100, *tokens.kv(900))).committed_length == 1000
    for _ in range(2):
        await client.open(LARGE)
    memory = (await client.info()).memory
    assert memory.resident <= memory.budget < memory.reserved <= 3 * memory.budget
    async with AsyncAttentionClient(server.address, **to(server.address)) as hand:
        assert (await hand.info()).overcommit == memory.overcommit == 3.0
