"""ExportStream: whole, never torn, never in the way for longer than its reader reads."""

import asyncio
import io
from typing import Any

import grpc
import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, everything_given_back, item
from snapshots import exported, imported, ref, snapshot_of
from transports import tenant

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.transfers import MOST_SENT
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import to_tensor

LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=4096
)
"""With 4000 tokens it has 33 MiB, more than a connection takes before anything is read."""


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=128 << 20)


async def filled(client: Client, spec: StreamSpec, tokens: int) -> pb.StreamRef:
    source = Tokens(np.random.default_rng(7), spec)
    stream = await client.open(spec)
    for start in range(0, tokens, 500):
        await client.append(stream, start, *source.kv(min(500, tokens - start)))
    return stream


async def begun(client: Client, stream: pb.StreamRef, size: int = 256) -> Any:
    """An export that has given its first piece and has more."""
    call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=size))
    assert len((await call.read()).data) == size
    return call


async def failure(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def rest(call: Any) -> bytes:
    raw = b""
    while (reply := await call.read()) is not grpc.aio.EOF:
        raw += reply.data
    return raw


async def unlocked(client: Client, server: Server, stream: pb.StreamRef) -> None:
    """Returns when no export of the stream is at work."""
    while server.streams.of(tenant()).get(stream.handle, 0).exports:
        await client.get(stream)


@pytest.mark.parametrize("size", [0, 256, 257, 5000, 1 << 20])
async def test_the_export_is_the_snapshot(client: Client, server: Server, size: int) -> None:
    stream = await filled(client, SPEC, 700)
    assert await exported(client, stream, size) == snapshot_of(server, stream)


@pytest.mark.parametrize("tokens", [0, 1, 700])
async def test_an_imported_stream_goes_on_as_its_original(
    client: Client, tokens_of: Tokens, tokens: int
) -> None:
    stream = await filled(client, SPEC, tokens)
    reply = await imported(client, await exported(client, stream))
    other = ref(reply)
    assert (reply.opened.committed_length, list(reply.opened.layer_lengths)) == (tokens, [tokens] * 3)
    for position in range(tokens, tokens + 20):
        q, k, v = tokens_of.qkv(1)
        for layer in range(3):
            one, two = await client.step(
                layer, *(item(s, position, q, k, v, lse=True) for s in (stream, other))
            )
            assert one.status.code == 0
            assert one == two
    states = [await client.get(s) for s in (stream, other)]
    assert states[0] == states[1]


@pytest.fixture
def tokens_of(rng: np.random.Generator) -> Tokens:
    return Tokens(rng)


@pytest.mark.parametrize("size", [1, 255, (1 << 20) + 1, 2**32 - 1])
async def test_sizes_of_pieces(client: Client, size: int) -> None:
    stream = await client.open()
    call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=size))
    failed = await failure(call.read())
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "max_data_bytes")


class TestSmallMessages:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, max_message_bytes=30_000)

    async def test_the_servers_limit_holds_for_pieces(self, client: Client, server: Server) -> None:
        stream = await client.open()
        await client.append(stream, 0, *Tokens(np.random.default_rng(0)).kv(40))
        call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream))
        replies = [reply async for reply in call]
        assert len(replies) > 1
        assert all(reply.ByteSize() <= 30_000 for reply in replies)
        assert b"".join(reply.data for reply in replies) == snapshot_of(server, stream)


async def test_what_cannot_be_exported(client: Client) -> None:
    gone = await client.open()
    await client.close(gone)
    for stream, reason in (
        (pb.StreamRef(), "INVALID_REQUEST"),
        (pb.StreamRef(handle="x"), "STREAM_NOT_FOUND"),
        (gone, "STREAM_CLOSED"),
    ):
        call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream))
        assert (await failure(call.read())).reason == reason


async def test_a_stream_is_changed_while_it_is_exported(client: Client, server: Server) -> None:
    """The export is the stream as it was; the stream is as if nobody had exported it."""
    stream, source = await filled(client, LARGE, 4000), Tokens(np.random.default_rng(1), LARGE)
    before, memory = snapshot_of(server, stream), server.arena.stats()
    call = await begun(client, stream, MOST_SENT)
    k, v = source.kv(3)
    await client.append(stream, 4000, k, v)
    await client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=3000))
    await client.append(stream, 3000, k, v, generation=1)
    sealing = pb.SealStreamRequest(stream=stream, generation=1)
    assert (await client.attention.SealStream(sealing)).committed_length == 3003
    assert server.arena.stats().shared > 0
    assert before[:MOST_SENT] + await rest(call) == before
    await unlocked(client, server, stream)
    assert (server.arena.stats().resident, server.arena.stats().shared) == (memory.resident, 0)
    twin = DecoderSession(LARGE, Arena(budget=64 << 20))
    source = Tokens(np.random.default_rng(7), LARGE)
    for _ in range(8):
        twin.append_all(*source.kv(500))
    twin.truncate(3000)
    twin.append_all(k, v)
    q = source.q(4)
    for layer in range(2):
        np.testing.assert_array_equal(
            await client.attend(stream, layer, q, generation=1), twin.attend(layer, q)
        )


class TestNoRoom:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=96 << 20)

    async def test_nothing_changes_a_stream_while_it_is_exported(
        self, client: Client, server: Server
    ) -> None:
        tokens = Tokens(np.random.default_rng(1), LARGE)
        stream, bystander = await filled(client, LARGE, 4000), await client.open(LARGE)
        before = snapshot_of(server, stream)
        call = await begun(client, stream)
        q, k, v = tokens.qkv(1)
        stacks = tokens.kv(1)
        for refused in (
            client.append(stream, 4000, *stacks),
            client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=3999)),
            client.attention.SealStream(pb.SealStreamRequest(stream=stream)),
        ):
            failed = await failure(refused)
            assert (failed.code, failed.reason) == (grpc.StatusCode.ABORTED, "SESSION_BUSY")
            assert "exported" in failed.message
        one, two = await client.step(0, item(stream, 4000, q, k, v), item(bystander, 0, q, k, v))
        assert (Failure.of(one.status).reason, two.status.code) == ("SESSION_BUSY", 0)
        assert (await client.attend(stream, 0, q)).shape == (1, 2, 256)
        assert (await client.get(stream)).committed_length == 4000
        assert await exported(client, stream) == before
        assert server.streams.of(tenant()).get(stream.handle, 0).exports == 1
        call.cancel()
        await unlocked(client, server, stream)
        assert (await client.append(stream, 4000, *stacks)).committed_length == 4001


async def test_exports_between_appends_hold_all_that_was_committed(client: Client, server: Server) -> None:
    """Two readers without a pause, and nobody is refused; every export is the stream at one moment."""
    stream, source = await client.open(), Tokens(np.random.default_rng(3))
    data = [source.kv(1) for _ in range(40)]

    async def append() -> None:
        for position, (k, v) in enumerate(data):
            await client.append(stream, position, k, v)

    writing = asyncio.create_task(append())
    exports = []
    while not writing.done():
        exports += await asyncio.gather(*(exported(client, stream, 4000) for _ in range(2)))
    await writing
    lengths = set()
    arena = Arena(budget=64 << 20)
    for raw in exports[:: max(1, len(exports) // 20)]:
        with DecoderSession.restore(io.BytesIO(raw), arena) as back, DecoderSession(SPEC, arena) as want:
            for k, v in data[: back.length]:
                want.append_all(k, v)
            file = io.BytesIO()
            want.snapshot(file)
            assert file.getvalue() == raw
            lengths.add(back.length)
    assert len(lengths) > 1


@pytest.mark.parametrize("when", ["at once", "after a piece"])
async def test_a_cancelled_export_lets_go(client: Client, server: Server, when: str) -> None:
    stream = await filled(client, LARGE, 2000)
    before = server.arena.stats()
    for _ in range(20):
        call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=4096))
        if when == "after a piece":
            await call.read()
        call.cancel()
    await unlocked(client, server, stream)
    assert server.arena.stats() == before
    assert (
        await client.append(stream, 2000, *Tokens(np.random.default_rng(0), LARGE).kv(1))
    ).committed_length == 2001


async def test_a_closed_stream_ends_its_export(client: Client, server: Server) -> None:
    stream = await filled(client, LARGE, 2000)
    call = await begun(client, stream)
    await client.close(stream)
    assert (await failure(rest(call))).reason == "STREAM_CLOSED"
    await everything_given_back(server)


class TestStall:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, stall_timeout_seconds=0.2)

    async def test_an_export_that_nobody_reads_is_ended(self, client: Client, server: Server) -> None:
        stream = await filled(client, LARGE, 4000)
        call = await begun(client, stream, 65536)
        assert server.streams.of(tenant()).get(stream.handle, 0).exports == 1
        await unlocked(client, server, stream)
        failed = await failure(rest(call))
        assert (failed.code, failed.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXPIRED")
        assert "nobody has read" in failed.message


async def test_others_are_served_while_a_stream_is_exported(
    client: Client, server: Server, tokens: Tokens
) -> None:
    stream, other = await filled(client, LARGE, 4000), await client.open()
    call = await begun(client, stream, 65536)
    q, k, v = tokens.qkv(1)
    for position in range(20):
        (result,) = await client.step(0, item(other, position, q, k, v))
        assert result.status.code == 0
    assert server.streams.of(tenant()).get(stream.handle, 0).exports == 1
    call.cancel()


async def test_a_stopping_server_ends_exports(client: Client, server: Server) -> None:
    stream = await filled(client, LARGE, 4000)
    call = await begun(client, stream, 65536)
    await server.stop(drain_seconds=0.1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rest(call)
    # The reason, Draining, comes after what was not read yet: a connection that ends may lose it.
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.arena.stats().reserved == 0


async def test_uneven_layers_and_options(client: Client, tokens: Tokens) -> None:
    stream = await filled(client, SPEC, 10)
    k, v = tokens.kv(2)
    await client.append(stream, 10, k[1:2], v[1:2], layer=1)
    reply = await imported(client, await exported(client, stream))
    assert (reply.opened.committed_length, list(reply.opened.layer_lengths)) == (10, [10, 12, 10])
    request = pb.AttendRequest(layer=1, q=to_tensor(tokens.q(3)), return_lse=True)
    answers = []
    for each in (stream, ref(reply)):
        request.stream.CopyFrom(each)
        answers.append(await client.attention.Attend(request))
    assert answers[0] == answers[1]
