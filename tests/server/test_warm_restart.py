"""A server that was killed or stopped is started on the same file: streams go on under their handles."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path

import grpc
import numpy as np
import pytest
from processes import Process, Start
from rawclient import SPEC, Client, Failure, Tokens

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.session import DecoderSession
from rondel.server.entries import Imported, Origin
from rondel.server.tags import Tag
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "arena")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("verify", ["full", "tail"])
async def test_streams_go_on_to_the_bit(
    start: Start, connect: Connect, tokens: Tokens, path: str, number: int, verify: str
) -> None:
    process = start(arena_file=path, verify=verify)
    client = connect(process.address)
    stream = await client.open(request_id="mine")
    k, v = tokens.kv(400)
    await client.append(stream, 0, k, v)
    await client.append(stream, 400, k[:1, :1], v[:1, :1])  # one layer only: not committed
    await client.fork(stream, 400, prefix="begin", request_id="prefix")
    gone = await client.open()
    await client.close(gone)
    q = tokens.q(2)
    before = [await client.attend(stream, layer, q, 398) for layer in range(SPEC.layers)]
    epoch = (await client.info()).epoch
    await process.end(number)

    client = connect(start(arena_file=path, verify=verify).address)
    assert (await client.info()).epoch == epoch
    assert (await client.info()).streams == 2
    state = await client.get(stream)
    assert (state.committed_length, list(state.layer_lengths)) == (400, [400] * SPEC.layers)
    assert (state.generation, state.epoch) == (1, epoch)
    for layer in range(SPEC.layers):
        after = await client.attend(stream, layer, q, 398, generation=1)
        np.testing.assert_array_equal(after, before[layer])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.append(stream, 400, k[:, :1], v[:, :1])
    assert Failure.of_call(caught.value).reason == "STALE_GENERATION"
    await client.append(stream, 400, k[:, :7], v[:, :7], generation=1)
    assert await client.open(request_id="mine") == stream
    begun = await client.attention.OpenStream(pb.OpenStreamRequest(from_prefix="begin"))
    assert begun.committed_length == 400
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.get(gone)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_what_a_client_was_told_is_there_after_a_kill_in_the_middle(
    start: Start, connect: Connect, path: str
) -> None:
    """Again and again; the answers are those of a stream that was never interrupted."""
    rng = np.random.default_rng(3)
    tokens = Tokens(rng)
    k, v = tokens.kv(600)
    process = start(arena_file=path)
    client = connect(process.address)
    streams = [await client.open() for _ in range(3)]
    told = [0] * 3

    async def drive(client: Client, number: int) -> None:
        state = await client.get(streams[number])
        assert told[number] <= state.committed_length <= told[number] + 5
        at, generation = state.committed_length, state.generation
        while at < 595:
            reply = await client.append(
                streams[number], at, k[:, at : at + 5], v[:, at : at + 5], generation=generation
            )
            at = told[number] = reply.committed_length

    for _ in range(4):
        driving = [asyncio.create_task(drive(client, number)) for number in range(3)]
        enough = min(told) + 40
        while min(told) < enough and not all(task.done() for task in driving):
            await asyncio.sleep(0.001)
        await process.end(signal.SIGKILL)
        for ended in await asyncio.gather(*driving, return_exceptions=True):
            assert ended is None or isinstance(ended, grpc.aio.AioRpcError), ended
        process = start(arena_file=path)
        client = connect(process.address)
    q = tokens.q(1)
    for number, stream in enumerate(streams):
        state = await client.get(stream)
        length = state.committed_length
        assert length >= told[number] > 100
        whole = DecoderSession(SPEC, Arena(64 << 20))
        whole.append_all(k[:, :length], v[:, :length])
        for layer in range(SPEC.layers):
            want = whole.attend(layer, q)
            got = await client.attend(stream, layer, q, generation=state.generation)
            np.testing.assert_array_equal(got, want)


async def test_requests_are_answered_again_as_before_the_kill(
    start: Start, connect: Connect, tokens: Tokens, path: str
) -> None:
    process = start(arena_file=path)
    client = connect(process.address)
    stream = await client.open(request_id="mine")
    await client.append(stream, 0, *tokens.kv(300))
    fork = await client.fork(stream, 300, request_id="fork")
    cuts = [pb.TruncateStreamRequest(stream=stream, length=300 - n, request_id=f"cut {n}") for n in (1, 2)]
    cuts[1].generation = 1
    for cut in cuts:
        done = await client.attention.TruncateStream(cut)
    assert (done.generation, done.committed_length) == (2, 298)
    gone = await client.open()
    await client.close(gone, "close")

    async def refused(call: Awaitable[object]) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return Failure.of_call(caught.value).reason

    other = pb.TruncateStreamRequest(stream=stream, generation=1, length=297, request_id="cut 2")
    for generation in (3, 4):
        await process.end(signal.SIGKILL)
        process = start(arena_file=path)
        client = connect(process.address)
        assert await client.open(request_id="mine") == stream
        again = await client.fork(stream, 300, request_id="fork")
        assert (again.handle, again.committed_length) == (fork.handle, 300)
        answer = await client.attention.TruncateStream(cuts[1])
        assert (answer.generation, answer.committed_length) == (generation, 298)
        assert await refused(client.attention.TruncateStream(cuts[0])) == "STALE_GENERATION"
        assert await refused(client.attention.TruncateStream(other)) == "INVALID_REQUEST"
        assert await refused(client.close(gone, "close")) == "STREAM_NOT_FOUND"
    last = pb.TruncateStreamRequest(stream=stream, generation=4, length=293, request_id="cut 3")
    for _ in range(2):
        assert (await client.attention.TruncateStream(last)).generation == 5
    assert await refused(client.attention.TruncateStream(cuts[1])) == "STALE_GENERATION"


async def test_an_owner_that_was_replaced_stays_so_after_a_kill(
    start: Start, connect: Connect, tokens: Tokens, path: str
) -> None:
    process = start(arena_file=path)
    client = connect(process.address)
    stream, other = await client.open(), await client.open()
    await client.append(stream, 0, *tokens.kv(3))
    attaches = [
        pb.AttachStreamRequest(stream=stream, generation=number, request_id=f"owner {number}")
        for number in range(2)
    ]
    for attach in attaches:
        await client.attention.AttachStream(attach)
    cut = pb.TruncateStreamRequest(stream=other, request_id="cut")
    await client.attention.AttachStream(pb.AttachStreamRequest(stream=other, generation=0))
    cut.generation = 1
    await client.attention.TruncateStream(cut)

    async def reason(call: Awaitable[object]) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        return Failure.of_call(caught.value).reason

    def named(generation: int, request_id: str = "") -> Awaitable[pb.AttachStreamResponse]:
        return client.attention.AttachStream(
            pb.AttachStreamRequest(stream=stream, generation=generation, request_id=request_id)
        )

    for generation in (3, 4):
        await process.end(signal.SIGKILL)
        process = start(arena_file=path)
        client = connect(process.address)
        # The first owner lost the stream to the second, whose own attach is answered again.
        assert await reason(named(1, "again")) == "STALE_GENERATION"
        assert await reason(named(0, "owner 0")) == "STALE_GENERATION"
        close = pb.CloseStreamRequest(stream=stream, generation=1)
        assert await reason(client.attention.CloseStream(close)) == "STALE_GENERATION"
        for _ in range(2):
            assert (await named(1, "owner 1")).stream.generation == generation
        assert await reason(named(2, "owner 1")) == "INVALID_REQUEST"
    assert (await named(2, "later")).stream.generation == 5
    # Whoever has truncated may not have heard of it before the kill.
    one = pb.AttachStreamRequest(stream=other, generation=0)
    assert await reason(client.attention.AttachStream(one)) == "STALE_GENERATION"
    one.generation = 1
    assert (await client.attention.AttachStream(one)).stream.generation == 5


async def test_an_import_that_was_not_finished_is_not_there(
    start: Start, connect: Connect, tokens: Tokens, path: str
) -> None:
    process = start(arena_file=path)
    client = connect(process.address)
    session = DecoderSession(SPEC, Arena(64 << 20))
    session.append_all(*tokens.kv(300))
    snapshot = BytesIO()
    session.snapshot(snapshot)
    raw = snapshot.getvalue()
    done = await client.attention.ImportStream(iter([pb.ImportStreamRequest(data=raw, request_id="all")]))
    call = client.attention.ImportStream()
    await call.write(pb.ImportStreamRequest(data=raw[:-40]))
    while (await client.info()).memory.resident < 1.5 * done.total_bytes:
        await asyncio.sleep(0.01)
    await process.end(signal.SIGKILL)
    client = connect(start(arena_file=path).address)
    assert (await client.info()).streams == 1
    again = await client.attention.ImportStream(iter([pb.ImportStreamRequest(data=raw, request_id="all")]))
    assert again.opened.handle == done.opened.handle
    assert again.opened.committed_length == 300


async def test_a_second_server_on_the_file_ends_with_the_reason(start: Start, path: str) -> None:
    start(arena_file=path)
    second = Process(arena_file=path)
    assert second.address == ""
    _, log = await asyncio.to_thread(second.popen.communicate, timeout=20)
    assert "ArenaFileBusy" in log
    assert second.popen.returncode == 1


async def test_streams_of_others_are_left_alone(start: Start, connect: Connect, path: str) -> None:
    arena = Arena(64 << 20, path=path)
    DecoderSession(SPEC, arena, tag=b"library")
    arena.close()
    process = start(arena_file=path)
    assert (await connect(process.address).info()).streams == 0
    _, _, log = await process.end(signal.SIGTERM)
    assert "none of a server's" in log
    arena = Arena(64 << 20, path=path)
    assert [each.tag for each in arena.found] == [b"library"]


@pytest.mark.parametrize(
    "tag",
    [
        Tag("h"),
        Tag("h", "id", Origin("parent", 3, 10, None, "name"), "weights"),
        Tag("h", "é" * 64, Imported(12, bytes(range(32)))),
        Tag("h", tenant="Ünit"),
        Tag(
            "h" * 24, "r" * 128, Origin("p" * 128, 1 << 60, 1 << 47, 1 << 47, "n" * 128), "w" * 128, "t" * 128
        ),
    ],
)
def test_tags_are_read_back(tag: Tag) -> None:
    assert Tag.decode(tag.encode()) == tag


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff", b"[]", b"null", Tag("h").encode()[:-1], b'{"kind": 1}'])
def test_tags_of_others(raw: bytes) -> None:
    assert Tag.decode(raw) is None


OLD = b'{"kind":"rondel-server-1","handle":"h","request":"r","projections":"p"}'


def test_tags_of_before_there_were_tenants_are_the_only_tenants() -> None:
    assert Tag.decode(OLD) == Tag("h", "r", None, "p", tenant="")
    assert Tag("h", "r", None, "p").encode() == OLD


def test_software_without_tenants_does_not_take_a_tenants_stream_for_everybodys() -> None:
    plain = json.loads(Tag("h", tenant="a").encode())
    assert plain["kind"] != json.loads(OLD)["kind"]
    assert Tag.decode(OLD[:-1] + b',"tenant":"a"}') is None


def test_a_tag_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="1024 at most"):
        Tag("h", "\x01" * 128, Origin("\x01" * 128, 0, 0, None, "")).encode()
