"""ImportStream: whole or not at all, once however often it is asked for, and never at the cost of others."""

import asyncio
import io
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, everything_given_back, item
from snapshots import exported, imported, pieces, ref, refused, session_of, snapshot_of
from transports import listening

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message


def snapshot(spec: StreamSpec = SPEC, tokens: int = 300, seed: int = 0) -> bytes:
    file = io.BytesIO()
    with DecoderSession(spec, Arena(budget=256 << 20)) as session:
        session.append_all(*Tokens(np.random.default_rng(seed), spec).kv(tokens))
        session.snapshot(file)
    return file.getvalue()


RAW = snapshot()
LARGE = StreamSpec.uniform(layers=6, query_heads=8, kv_heads=8, head_dim=128, window=9000)
"""Too large for the server of these tests."""


async def nothing_is_left(client: Client, server: Server) -> None:
    await everything_given_back(server)
    info = await client.info()
    assert (info.streams, info.memory.reserved, info.memory.resident) == (0, 0, 0)


async def begun(client: Client, raw: bytes, server: Server) -> Any:
    """An import that has its pages reserved and waits for more."""
    call = client.attention.ImportStream()
    await call.write(pb.ImportStreamRequest(data=raw))
    while not server.arena.stats().reserved:
        await client.info()
    return call


@pytest.mark.parametrize("size", [7000, 65_536, 1 << 20])
async def test_the_stream_is_the_snapshot(client: Client, server: Server, size: int) -> None:
    reply = await imported(client, RAW, size=size)
    stream = ref(reply)
    assert reply.total_bytes == len(RAW)
    assert (reply.opened.committed_length, reply.opened.generation) == (300, 0)
    assert list(reply.opened.layer_lengths) == [300] * 3
    assert snapshot_of(server, stream) == RAW
    state = await client.get(stream)
    assert state.spec == reply.opened.spec == spec_to_message(SPEC, in_force=True)


async def test_a_byte_at_a_time(client: Client, server: Server) -> None:
    raw = snapshot(StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=1, max_length=4), 0)
    stream = ref(await imported(client, raw, size=1))
    assert snapshot_of(server, stream) == raw


@pytest.mark.every_transport
async def test_another_server_goes_on(client: Client, server: Server, tokens: Tokens, connect: Any) -> None:
    here = await client.open()
    await client.append(here, 0, *tokens.kv(500))
    raw = await exported(client, here)
    second = await Server.start(listening(ServerConfig(port=0, budget_bytes=16 << 20)))
    try:
        other = connect(second.address)
        there = ref(await imported(other, raw))
        for position in range(500, 540):
            q, k, v = tokens.qkv(1)
            for layer in range(3):
                answers = [
                    (await c.step(layer, item(s, position, q, k, v)))[0]
                    for c, s in ((client, here), (other, there))
                ]
                assert answers[0].status.code == 0
                assert answers[0] == answers[1]
    finally:
        await second.stop(drain_seconds=0)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "CORRUPT_SNAPSHOT"),
        (b"garbage" * 100_000, "CORRUPT_SNAPSHOT"),
        (RAW[:-1], "CORRUPT_SNAPSHOT"),
        (RAW + b"\0", "CORRUPT_SNAPSHOT"),
        (RAW[:9000] + b"\xff" + RAW[9001:], "CORRUPT_SNAPSHOT"),
        (RAW[:8] + struct.pack("<I", 9) + RAW[12:], "CORRUPT_SNAPSHOT"),
        (snapshot(LARGE, 1), "BUDGET_EXCEEDED"),
    ],
    ids=["empty", "garbage", "cut", "longer", "flipped", "version", "large"],
)  # fmt: skip
async def test_refused_snapshots(client: Client, server: Server, raw: bytes, reason: str) -> None:
    failed = await refused(server, pieces(raw, 5000))
    assert failed.reason == reason
    if reason == "CORRUPT_SNAPSHOT":
        assert failed.code == grpc.StatusCode.INVALID_ARGUMENT
        assert failed.facts["part"]
    await nothing_is_left(client, server)


async def test_a_newer_version(client: Client, server: Server) -> None:
    start = RAW[:8] + struct.pack("<I", 2) + RAW[12:20]
    failed = await refused(server, pieces(start + struct.pack("<I", zlib.crc32(start)) + RAW[24:]))
    assert (failed.code, failed.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "UNSUPPORTED_SNAPSHOT")
    assert (failed.facts["version"], failed.facts["supported"]) == ("2", "1")


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "data"),
        ([pb.ImportStreamRequest(data=b"x" * ((1 << 20) + 1))], "data"),
        ([pb.ImportStreamRequest(data=b"x" * (2 << 20))], "ImportStreamRequest"),
        ([pb.ImportStreamRequest(request_id="x" * 129)], "request_id"),
        ([pb.ImportStreamRequest(projections="x" * 129)], "projections"),
        ([*pieces(RAW, 9000)[:2], pb.ImportStreamRequest(request_id="late")], "request_id"),
        ([*pieces(RAW, 9000)[:2], pb.ImportStreamRequest(projections="late")], "projections"),
    ],
    ids=["none", "piece", "message", "id", "name", "late id", "late name"],
)  # fmt: skip
async def test_refused_requests(
    client: Client, server: Server, requests: list[pb.ImportStreamRequest], field: str
) -> None:
    failed = await refused(server, requests)
    assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert failed.facts["field"] == field
    await nothing_is_left(client, server)


async def test_unknown_projections(client: Client, server: Server) -> None:
    failed = await refused(server, pieces(RAW, projections="none such"))
    assert failed.reason == "PROJECTION_NOT_FOUND"
    await nothing_is_left(client, server)


class TestFull:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, max_streams=2)

    async def test_imports_count_as_streams(self, client: Client, server: Server) -> None:
        await imported(client, RAW)
        resident = server.arena.stats().resident
        call = client.attention.ImportStream()
        await call.write(pb.ImportStreamRequest(data=RAW[:20_000]))
        await client.open()
        await call.write(pb.ImportStreamRequest(data=RAW[20_000:]))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert Failure.of_call(caught.value).reason == "QUOTA_EXCEEDED"
        assert (await refused(server, pieces(RAW))).reason == "QUOTA_EXCEEDED"
        await client.info()
        assert server.arena.stats().resident == resident


# --- ends -----------------------------------------------------------------------------------------


async def test_a_cancelled_import_leaves_nothing(client: Client, server: Server) -> None:
    for end in (10, 24, 500, 5000, 30_000, len(RAW) - 1):
        call = client.attention.ImportStream()
        await call.write(pb.ImportStreamRequest(data=RAW[:end]))
        call.cancel()
    call = await begun(client, RAW[:30_000], server)
    call.cancel()
    await nothing_is_left(client, server)


class TestStall:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, stall_timeout_seconds=0.2)

    async def test_an_import_that_nobody_feeds_is_ended(self, client: Client, server: Server) -> None:
        call = await begun(client, RAW[:30_000], server)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        failed = Failure.of_call(caught.value)
        assert (failed.code, failed.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXPIRED")
        await nothing_is_left(client, server)


async def test_a_stopping_server_ends_imports(client: Client, server: Server) -> None:
    call = await begun(client, RAW[:30_000], server)
    await server.stop(drain_seconds=0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert Failure.of_call(caught.value).reason == "DRAINING"
    assert server.arena.stats().reserved == 0


async def test_a_deadline_ends_an_import(client: Client, server: Server) -> None:
    call = client.attention.ImportStream(timeout=0.3)
    await call.write(pb.ImportStreamRequest(data=RAW[:30_000]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await nothing_is_left(client, server)


# --- exactly once ---------------------------------------------------------------------------------


async def test_a_repeated_import_is_the_same_stream(client: Client, server: Server, tokens: Tokens) -> None:
    first = await imported(client, RAW, request_id="a")
    reserved = server.arena.stats().reserved
    assert await imported(client, RAW, size=10_000, request_id="a") == first
    await client.append(ref(first), 300, *tokens.kv(2))
    again = await imported(client, RAW, request_id="a")
    assert again.opened.handle == first.opened.handle
    assert (again.opened.committed_length, list(again.opened.layer_lengths)) == (302, [302] * 3)
    assert ((await client.info()).streams, server.arena.stats().reserved) == (1, reserved)
    assert (await imported(client, RAW, request_id="b")).opened.handle != first.opened.handle
    await client.close(ref(first))
    assert (await imported(client, RAW, request_id="a")).opened.handle != first.opened.handle


async def test_a_repeated_import_needs_no_room(client: Client, server: Server) -> None:
    spec = StreamSpec.uniform(layers=2, query_heads=8, kv_heads=8, head_dim=128, window=9000)
    raw = snapshot(spec, 10)
    first = await imported(client, raw, request_id="a")
    assert (await refused(server, pieces(raw))).reason == "BUDGET_EXCEEDED"
    assert await imported(client, raw, request_id="a") == first


async def test_one_name_for_two_things(client: Client, server: Server) -> None:
    await imported(client, RAW, request_id="a")
    await client.open(request_id="b")
    streams = (await client.info()).streams
    for raw, name in ((snapshot(seed=1), "a"), (RAW[:-1], "a"), (RAW + b"x", "a"), (RAW, "b")):
        failed = await refused(server, pieces(raw, request_id=name))
        assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "request_id")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.open(request_id="a")
    assert Failure.of_call(caught.value).reason == "INVALID_REQUEST"
    assert (await client.info()).streams == streams


async def test_two_imports_of_one_name_at_once(client: Client, server: Server) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def slowly(gate: asyncio.Event) -> AsyncIterator[pb.ImportStreamRequest]:
        first, *rest = pieces(RAW, 9000, request_id="a")
        yield first
        await gate.wait()
        for request in rest:
            yield request

    calls = [client.attention.ImportStream(slowly(gate)) for gate in gates]
    while server.arena.stats().resident == 0:
        await client.info()
    await client.info()
    for gate in gates:
        gate.set()
    one, two = await asyncio.gather(*calls)
    assert one == two
    assert (await client.info()).streams == 1
    assert session_of(server, ref(one)).stats().bytes_reserved <= server.arena.stats().reserved
    await client.close(ref(one))
    await nothing_is_left(client, server)
