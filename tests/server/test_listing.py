"""ListStreams: every stream once, whatever happens between two pages."""

from __future__ import annotations

import grpc
import pytest
from held import Clock
from rawclient import Client, Failure, Tokens
from transports import tenant

from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tenant_pb2 import ListStreamsRequest, ListStreamsResponse


async def page(client: Client, size: int = 0, token: str = "") -> ListStreamsResponse:
    reply: ListStreamsResponse = await client.attention.ListStreams(
        ListStreamsRequest(page_size=size, page_token=token)
    )
    return reply


async def listed(client: Client, size: int) -> list[list[str]]:
    """The handles of each page."""
    pages, token = [], ""
    while True:
        reply = await page(client, size, token)
        pages.append([stream.handle for stream in reply.streams])
        token = reply.next_page_token
        if not token:
            return pages


async def test_nothing_is_one_empty_page(client: Client) -> None:
    assert await page(client) == ListStreamsResponse()


async def test_pages_of_every_size_hold_all_streams_in_the_order_of_opening(client: Client) -> None:
    handles = [(await client.open()).handle for _ in range(7)]
    for size in range(1, 9):
        assert await listed(client, size) == [handles[at : at + size] for at in range(0, 7, size)]
    assert await listed(client, 0) == await listed(client, 1000) == [handles]


async def test_a_default_page_has_a_hundred(client: Client) -> None:
    for _ in range(101):
        await client.open()
    assert [len(handles) for handles in await listed(client, 0)] == [100, 1]


async def test_streams_that_come_and_go_between_pages(client: Client) -> None:
    streams = [await client.open() for _ in range(6)]
    first = await page(client, 3)
    await client.close(streams[2])  # the place that the token names
    await client.close(streams[0])
    await client.close(streams[4])
    later = await client.open()
    rest = await page(client, 3, first.next_page_token)
    handles = [stream.handle for stream in (*first.streams, *rest.streams)]
    assert handles == [streams[n].handle for n in (0, 1, 2, 3, 5)] + [later.handle]
    assert rest.next_page_token == ""
    assert await listed(client, 3) == [
        [streams[1].handle, streams[3].handle, streams[5].handle],
        [later.handle],
    ]


async def test_a_stream_is_told_as_get_tells_it(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(150))
    await client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=140))
    await client.attention.SealStream(pb.SealStreamRequest(stream=stream, generation=1))
    await client.fork(stream, 140, generation=1)
    (one, fork) = (await page(client)).streams
    state = await client.get(stream)
    for name in (
        "epoch",
        "generation",
        "committed_length",
        "bytes_reserved",
        "bytes_resident",
        "bytes_shared",
    ):
        assert getattr(one, name) == getattr(state, name), name
    assert one.sealed
    assert one.bytes_shared == fork.bytes_shared > 0
    assert (one.generation, one.committed_length, fork.generation) == (1, 140, 0)


async def test_idle_time_is_told_and_goes_on(client: Client, server: Server) -> None:
    clock = Clock()
    server.streams.clock = clock
    first, second = await client.open(), await client.open()
    clock.now += 2.5
    await client.get(second)
    clock.now += 1.0
    for _ in range(2):  # to be listed is not to be named
        assert [stream.idle_ms for stream in (await page(client)).streams] == [3500, 1000]
    assert server.streams.of(tenant()).idle_seconds(server.streams.of(tenant()).get(first.handle, 0)) == 0


@pytest.mark.parametrize(
    ("size", "token", "field"),
    [
        (1001, "", "page_size"),
        (2**32 - 1, "", "page_size"),
        (1, "x", "page_token"),
        (1, "-1", "page_token"),
        (1, "٣", "page_token"),
        (1, "1" * 20, "page_token"),
        (1, "1" * 129, "page_token"),
    ],
)
async def test_what_is_no_page(client: Client, size: int, token: str, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await page(client, size, token)
    failed = Failure.of_call(caught.value)
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", field)


async def test_a_place_beyond_the_end_is_an_empty_page(client: Client) -> None:
    await client.open()
    for token in ("1", "9" * 19):
        assert await page(client, 1, token) == ListStreamsResponse()
