"""Two streams in one file that requests of the same name made: the first was set aside as damaged when the
request was repeated, and is served again after a later start."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from rawclient import SPEC, Client, Failure
from transports import tenant

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server.config import ServerConfig
from rondel.server.tags import Tag
from rondel.v1 import attention_pb2 as pb

STREAMS = [pb.StreamRef(handle=handle) for handle in ("one", "other")]


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    path = tmp_path / "arena"
    arena = Arena(64 << 20, path=path)
    for stream in STREAMS:
        DecoderSession(SPEC, arena, tag=Tag(stream.handle, "mine", tenant=tenant()).encode())
    arena.close()
    return ServerConfig(port=0, budget_bytes=64 << 20, arena_file=str(path))


async def named(client: Client) -> str:
    """The handle of the stream that the name stands for."""
    return (await client.open(request_id="mine")).handle


async def test_the_end_of_the_one_is_not_that_of_the_other(client: Client) -> None:
    kept = await named(client)
    gone = next(stream for stream in STREAMS if stream.handle != kept)
    await client.close(gone)
    assert await named(client) == kept
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.get(gone)
    assert Failure.of_call(caught.value).reason == "STREAM_CLOSED"


async def test_both_can_be_closed_in_any_order(client: Client) -> None:
    kept = await named(client)
    for stream in sorted(STREAMS, key=lambda stream: stream.handle != kept):
        await client.close(stream)
    assert (await client.info()).streams == 0
    assert await named(client) not in {stream.handle for stream in STREAMS}


async def test_a_new_stream_of_the_name_outlives_both(client: Client) -> None:
    kept = await named(client)
    first, second = sorted(STREAMS, key=lambda stream: stream.handle != kept)
    await client.close(first)
    new = await named(client)
    await client.close(second)
    assert await named(client) == new
