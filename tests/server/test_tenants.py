"""Two tenants: what one has is to the other as if nobody had it, in every method and to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from processes import Start
from rawclient import Client, Failure, Tokens, item
from rawdecode import Decode
from snapshots import exported, imported, ref
from tenancy import TOKENS, bringing, tenants_text, with_tenants

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tenant_pb2 import ListStreamsRequest

Connect = Callable[[str], Client]

STRANGE = "A" * 24
"""A handle that nobody has, of the length that all have."""


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return with_tenants(ServerConfig(port=0, budget_bytes=64 << 20, drain_seconds=5.0), tmp_path)


@pytest.fixture
def alpha(client: Client) -> Client:
    return bringing(client, TOKENS["alpha"])


@pytest.fixture
def beta(client: Client) -> Client:
    return bringing(client, TOKENS["beta"])


def requests(stream: pb.StreamRef, tokens: Tokens) -> dict[str, Any]:
    """A request of every method that names a stream, which would succeed if the stream was one's own."""
    (k, v), q = tokens.kv(1), tokens.q(1)
    part = item(stream, 3, *tokens.qkv(1))
    append = pb.AppendTokenRequest(stream=stream, position=3)
    attend = pb.AttendRequest(stream=stream)
    for message, arrays in ((append, {"k": k, "v": v}), (attend, {"q": q})):
        for name, array in arrays.items():
            tensor = getattr(message, name)
            tensor.dtype, tensor.data = part.q.dtype, array.tobytes()
            tensor.shape.extend(array.shape)
    return {
        "AppendToken": append,
        "Attend": attend,
        "Step": pb.StepRequest(items=[part]),
        "ForkStream": pb.ForkStreamRequest(stream=stream, length=3, request_id="fork"),
        "TruncateStream": pb.TruncateStreamRequest(stream=stream, length=3),
        "SealStream": pb.SealStreamRequest(stream=stream),
        "AttachStream": pb.AttachStreamRequest(stream=stream, request_id="attach"),
        "GetStream": pb.GetStreamRequest(stream=stream, quality=True),
        "ExportStream": pb.ExportStreamRequest(stream=stream),
        "CloseStream": pb.CloseStreamRequest(stream=stream, request_id="close"),
    }


NO_STREAM = {"OpenStream", "ImportStream", "Decode", "ListStreams", "GetServerInfo"}
"""Methods that name no stream; Decode has a test of its own."""


async def answer(client: Client, method: str, request: Any) -> bytes:
    """All that a client gets to see: code, text and trailers, or the reply."""
    call = getattr(client.attention, method)(request)
    try:
        if method == "ExportStream":
            while (reply := await call.read()) is not grpc.aio.EOF:
                pass
        else:
            reply = await call
            return bytes(reply.SerializeToString())
    except grpc.aio.AioRpcError as error:
        trailers = [(key, value) for key, value in error.trailing_metadata()]
        return repr((error.code(), error.details(), trailers, error.initial_metadata())).encode()
    return b""


async def filled(client: Client, tokens: Tokens, request_id: str = "") -> pb.StreamRef:
    stream = await client.open(request_id=request_id)
    await client.append(stream, 0, *tokens.kv(3))
    return stream


@pytest.mark.every_transport
async def test_a_handle_of_another_tenant_is_answered_as_one_that_nobody_has(
    alpha: Client, beta: Client, tokens: Tokens
) -> None:
    methods = pb.DESCRIPTOR.services_by_name["AttentionService"].methods_by_name
    live, closed = await filled(alpha, tokens, "open"), await alpha.open()
    await alpha.close(closed, "close")
    before = await alpha.get(live)
    for epoch in (0, live.epoch, live.epoch + 1):
        strange = requests(pb.StreamRef(handle=STRANGE, epoch=epoch), tokens)
        assert set(strange) | NO_STREAM == set(methods)
        for method, request in strange.items():
            unknown = await answer(beta, method, request)
            assert b"NOT_FOUND" in unknown
            for stream in (live, closed):
                assert len(stream.handle) == len(STRANGE)
                guess = requests(pb.StreamRef(handle=stream.handle, epoch=epoch), tokens)[method]
                got = await answer(beta, method, guess)
                assert got.replace(stream.handle.encode(), STRANGE.encode()) == unknown, method
    assert await alpha.get(live) == before
    assert Failure.of_call(await refused(alpha.get(closed))).reason == "STREAM_CLOSED"


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_so_it_is_in_a_decode_call(alpha: Client, beta: Client, tokens: Tokens) -> None:
    live = await filled(alpha, tokens)
    raw = []
    for handle in (live.handle, STRANGE):
        async with Decode(beta) as decode:
            attach = pb.AttachStreamRequest(stream=pb.StreamRef(handle=handle))
            results = await decode.ask(
                decode.op(1, attach=attach),
                decode.op(1, append=pb.AppendTokenRequest()),
                decode.stepping(0, pb.StepItem(stream_ref=1)),
                decode.op(1, close=pb.CloseStreamRequest()),
            )
            raw.append(b"".join(result.SerializeToString() for result in results))
    assert raw[0].replace(live.handle.encode(), STRANGE.encode()) == raw[1]
    assert b"STREAM_NOT_FOUND" in raw[1]
    assert (await alpha.get(live)).generation == 0


async def test_items_of_a_step_are_the_callers_own(alpha: Client, beta: Client, tokens: Tokens) -> None:
    theirs, own = await alpha.open(), await beta.open()
    parts = [item(stream, 0, *tokens.qkv(1)) for stream in (theirs, own, pb.StreamRef(handle=STRANGE))]
    other, mine, unknown = await beta.step(0, *parts)
    assert other.SerializeToString().replace(theirs.handle.encode(), STRANGE.encode()) == (
        unknown.SerializeToString()
    )
    assert (mine.status.code, mine.layer_length) == (0, 1)
    assert list((await alpha.get(theirs)).layer_lengths) == [0, 0, 0]


async def test_names_of_requests_are_each_tenants_own(alpha: Client, beta: Client, tokens: Tokens) -> None:
    first = await filled(alpha, tokens, "mine")
    second = await beta.open(request_id="mine")
    assert first.handle != second.handle
    assert await alpha.open(request_id="mine") == first
    assert await beta.open(request_id="mine") == second
    copies = [
        (await client.fork(stream, length, request_id="copy")).handle
        for client, stream, length in ((alpha, first, 3), (beta, second, 0))
    ]
    raw = await exported(alpha, first)
    brought = [ref(await imported(client, raw, request_id="brought")).handle for client in (alpha, beta)]
    assert len({first.handle, second.handle, *copies, *brought}) == 6
    with pytest.raises(grpc.aio.AioRpcError):  # taken by an import of alpha's, which beta's is not
        await alpha.open(request_id="brought")
    for client in (alpha, beta):
        assert (await client.info()).streams == 3


async def test_prefixes_are_each_tenants_own(alpha: Client, beta: Client, tokens: Tokens) -> None:
    stream = await filled(alpha, tokens)
    await alpha.fork(stream, 3, prefix="begin")
    known = await answer(beta, "OpenStream", pb.OpenStreamRequest(from_prefix="begin"))
    assert known.replace(b"begin", b"never") == (
        await answer(beta, "OpenStream", pb.OpenStreamRequest(from_prefix="never"))
    )
    assert b"STREAM_NOT_FOUND" in known
    own = await beta.open()
    await beta.fork(own, 0, prefix="begin")  # alpha's name is not taken
    for client, length in ((alpha, 3), (beta, 0)):
        begun = await client.attention.OpenStream(pb.OpenStreamRequest(from_prefix="begin"))
        assert begun.committed_length == length


async def test_each_sees_its_own_streams_and_memory(
    alpha: Client, beta: Client, server: Server, tokens: Tokens
) -> None:
    before = await beta.info()
    assert (before.tenant.name, before.streams, before.memory.reserved) == ("beta", 0, 0)
    streams = [await filled(alpha, tokens) for _ in range(3)]
    await alpha.fork(streams[0], 3)
    assert await beta.info() == before
    listed = await beta.attention.ListStreams(ListStreamsRequest())
    assert not listed.streams
    own = await beta.open()
    info, usage = await alpha.info(), server.streams.usage("alpha")
    assert (info.streams, usage.streams) == (4, 4)
    assert info.memory.reserved == usage.reserved > 0
    assert info.memory.shared == usage.shared > 0
    assert (await alpha.attention.ListStreams(ListStreamsRequest())).streams[0].handle == streams[0].handle
    assert [s.handle for s in (await beta.attention.ListStreams(ListStreamsRequest())).streams] == [
        own.handle
    ]


async def test_usage_is_exact_and_comes_back_to_nothing(
    alpha: Client, beta: Client, server: Server, tokens: Tokens
) -> None:
    rng = np.random.default_rng(0)
    mine: dict[str, list[pb.StreamRef]] = {"alpha": [], "beta": []}
    for turn in range(30):
        name = ("alpha", "beta")[turn % 2]
        client = alpha if name == "alpha" else beta
        if turn % 3 == 2 and mine[name]:
            parent = mine[name][int(rng.integers(len(mine[name])))]
            fork = await client.fork(parent, (await client.get(parent)).committed_length)
            mine[name].append(pb.StreamRef(handle=fork.handle))
        elif turn % 5 == 4 and mine[name]:
            await client.close(mine[name].pop(0))
        else:
            mine[name].append(await client.open())
            await client.append(mine[name][-1], 0, *tokens.kv(int(rng.integers(1, 300))))
        for tenant, each in (("alpha", alpha), ("beta", beta)):
            states = [await each.get(stream) for stream in mine[tenant]]
            usage = server.streams.usage(tenant)
            assert usage.streams == len(states)
            assert usage.reserved == sum(state.bytes_reserved for state in states)
            assert usage.resident <= sum(state.bytes_resident for state in states)
        stats = server.arena.stats()
        both = [server.streams.usage(tenant) for tenant in mine]
        assert sum(usage.resident for usage in both) == stats.resident
        assert sum(usage.shared for usage in both) == stats.shared
    for tenant, each in (("alpha", alpha), ("beta", beta)):
        for stream in mine[tenant]:
            await each.close(stream)
        usage = server.streams.usage(tenant)
        assert (usage.streams, usage.reserved, usage.resident, usage.shared) == (0, 0, 0, 0)


async def test_closing_many_does_not_show_in_the_others_answers(
    alpha: Client, beta: Client, server: Server
) -> None:
    gone = await beta.open()
    await beta.close(gone, "close")
    streams = server.streams.of("alpha")
    for _ in range(3):  # what alpha has closed fills its own list, of so many
        stream = await alpha.open()
        await alpha.close(stream)
    streams._closed.update((f"h{n}", next(iter(streams._closed.values()))) for n in range(5000))
    await alpha.close(await alpha.open())
    assert Failure.of_call(await refused(beta.get(gone))).reason == "STREAM_CLOSED"
    await beta.close(gone, "close")


async def test_tenants_outlive_a_kill(start: Start, connect: Connect, tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(tenants_text())
    options = {"arena_file": str(tmp_path / "arena"), "tenants_file": str(path)}
    process = start(**options)
    alpha, beta = (bringing(connect(process.address), token) for token in TOKENS.values())
    stream = await filled(alpha, tokens, "open")
    await alpha.fork(stream, 3, prefix="begin")
    q = tokens.q(1)
    before = await alpha.attend(stream, 0, q)
    memory = (await alpha.info()).memory
    process.popen.kill()
    await asyncio.to_thread(process.popen.wait)

    process = start(**options)
    alpha, beta = (bringing(connect(process.address), token) for token in TOKENS.values())
    assert Failure.of_call(await refused(beta.get(stream))).reason == "STREAM_NOT_FOUND"
    assert (await beta.info()).streams == 0
    assert (await beta.open(request_id="open")) != stream
    assert (await alpha.open(request_id="open")) == stream
    np.testing.assert_array_equal(await alpha.attend(stream, 0, q, generation=1), before)
    begun = await alpha.attention.OpenStream(pb.OpenStreamRequest(from_prefix="begin"))
    assert begun.committed_length == 3
    await alpha.close(pb.StreamRef(handle=begun.handle))
    assert (await alpha.info()).memory == memory


async def test_a_full_server_does_not_tell_what_others_have(alpha: Client, beta: Client) -> None:
    def spec(length: int) -> StreamSpec:
        return StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=64, max_length=length)

    answers = []
    for _ in range(3):
        failed = Failure.of_call(await refused(beta.open(spec(600_000))))
        assert (failed.reason, failed.facts) == ("BUDGET_EXCEEDED", {})
        answers.append(failed.status.SerializeToString())
        await alpha.open(spec(90_000))
    assert len(set(answers)) == 1
