"""Taking a stream over: what nobody committed goes, a generation begins, and the request may be repeated."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from processes import Start
from rawclient import SPEC, Client, Failure, Tokens, item

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]


async def failure(call: Awaitable[object]) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def attach(
    client: Client, stream: pb.StreamRef, request_id: str = "", generation: int | None = None
) -> pb.OpenStreamResponse:
    reply = await client.attention.AttachStream(
        pb.AttachStreamRequest(stream=stream, request_id=request_id, generation=generation)
    )
    return reply.stream


async def test_layers_are_rolled_back_to_what_all_have(client: Client, tokens: Tokens) -> None:
    """Also in a ring that has wrapped; it goes on as one that never had the rest."""
    stream = await client.open()
    session = DecoderSession(SPEC, Arena(64 << 20))
    k, v = tokens.kv(600)
    q = tokens.q(5)
    await client.append(stream, 0, k[:, :500], v[:, :500])
    session.append_all(k[:, :500], v[:, :500])
    await client.append(stream, 500, k[:1, 500:509], v[:1, 500:509])
    await client.append(stream, 500, k[1:2, 500:503], v[1:2, 500:503], layer=1)
    state = await attach(client, stream)
    assert (state.generation, state.committed_length) == (1, 500)
    assert list(state.layer_lengths) == [500] * SPEC.layers
    assert (state.handle, state.epoch) == (stream.handle, stream.epoch)
    k, v = tokens.kv(5)
    for layer in range(SPEC.layers):
        (result,) = await client.step(layer, item(stream, 500, q, k[layer], v[layer], generation=1))
        want = session.step(layer, q, k[layer], v[layer])
        assert result.out.data == want.tobytes()


async def test_what_the_caller_before_still_sends_is_stale(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(3)
    await client.append(stream, 0, k[:, :1], v[:, :1])
    await attach(client, stream)
    requests = [
        client.append(stream, 1, k[:, 1:2], v[:, 1:2]),
        client.attend(stream, 0, tokens.q(1)),
        client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream)),
        client.attention.SealStream(pb.SealStreamRequest(stream=stream)),
        client.fork(stream, 1),
    ]
    for request in requests:
        failed = await failure(request)
        assert (failed.reason, failed.facts["current"]) == ("STALE_GENERATION", "1")
    (result,) = await client.step(0, item(stream, 1, *tokens.qkv(1)))
    assert Failure.of(result.status).reason == "STALE_GENERATION"
    assert (await client.get(stream)).high_water == 1


async def test_a_repeated_attach_is_answered_again(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    first = await attach(client, stream, "mine")
    for _ in range(2):
        assert await attach(client, stream, "mine") == first
    racing = await asyncio.gather(*(attach(client, stream, "race") for _ in range(8)))
    assert {state.generation for state in racing} == {2}
    assert (await failure(attach(client, stream, "race", generation=2))).reason == "INVALID_REQUEST"
    assert (await attach(client, stream)).generation == 3
    assert (await failure(attach(client, stream, "race"))).reason == "STALE_GENERATION"
    assert (await client.get(stream)).generation == 3


async def test_one_that_names_a_generation_does_not_take_from_another(client: Client) -> None:
    stream = await client.open()
    assert (await attach(client, stream, "a", generation=0)).generation == 1
    failed = await failure(attach(client, stream, "b", generation=0))
    assert (failed.reason, failed.facts["current"]) == ("STALE_GENERATION", "1")
    assert (await attach(client, stream, "a", generation=0)).generation == 1
    assert (await failure(attach(client, stream, generation=-1))).reason == "STALE_GENERATION"


async def test_a_sealed_stream_stays_as_it_is(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(3))
    await client.attention.SealStream(pb.SealStreamRequest(stream=stream))
    state = await attach(client, stream)
    assert (state.generation, state.committed_length) == (0, 3)
    await client.attend(stream, 0, tokens.q(1))


async def test_prefixes_and_their_streams_can_be_attached_to(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(3))
    prefix = await client.fork(stream, 3, prefix="begin")
    assert (await attach(client, pb.StreamRef(handle=prefix.handle))).committed_length == 3
    reply = await client.attention.OpenStream(pb.OpenStreamRequest(from_prefix="begin"))
    assert reply.committed_length == 3


async def test_who_is_not_there_cannot_be_attached_to(client: Client) -> None:
    stream = await client.open()
    await client.close(stream)
    assert (await failure(attach(client, stream))).reason == "STREAM_CLOSED"
    assert (await failure(attach(client, pb.StreamRef(handle="nobody")))).reason == "STREAM_NOT_FOUND"
    assert (await failure(attach(client, pb.StreamRef()))).reason == "INVALID_REQUEST"
    other = pb.StreamRef(handle=stream.handle, epoch=stream.epoch + 1)
    assert (await failure(attach(client, other))).reason == "STREAM_NOT_FOUND"


async def test_a_stream_can_be_taken_over_while_it_is_exported(client: Client) -> None:
    """The export goes on with what it had begun with."""
    spec = StreamSpec.uniform(layers=4, query_heads=8, kv_heads=8, head_dim=128, max_length=4000)
    stream = await client.open(spec)
    await client.append(stream, 0, *Tokens(np.random.default_rng(1), spec).kv(300))
    call = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=4096))
    first = await call.read()
    assert (await attach(client, stream)).generation == 1
    size = len(first.data)
    while (piece := await call.read()) is not grpc.aio.EOF:
        size += len(piece.data)
    assert size == first.total_bytes


async def test_every_start_has_a_number_where_the_file_s_epoch_stays(
    start: Start, connect: Connect, tokens: Tokens, tmp_path: Path
) -> None:
    """The stream is in another generation then, and the answer to an attach is kept all the same."""
    path = str(tmp_path / "arena")
    process = start(arena_file=path)
    client = connect(process.address)
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(2))
    await attach(client, stream, "mine", generation=0)
    first = await client.info()
    await process.end(signal.SIGKILL)
    process = start(arena_file=path)
    client = connect(process.address)
    second = await client.info()
    assert first.epoch == second.epoch
    assert first.start_id != second.start_id
    state = await attach(client, stream, "mine", generation=0)
    assert (state.generation, state.committed_length, state.start_id) == (2, 2, second.start_id)
    assert (await attach(client, stream, "next", generation=1)).generation == 3
    await process.end(signal.SIGKILL)
    client = connect(start(arena_file=path).address)
    # Who had it before the start may attach, and nobody else.
    for other in (2, 5):
        assert (await failure(attach(client, stream, generation=other))).facts["current"] == "4"
    for _ in range(2):
        assert (await attach(client, stream, "a", generation=3)).generation == 5
    assert (await failure(attach(client, stream, "b", generation=3))).reason == "STALE_GENERATION"
    assert (await attach(client, stream, "b")).generation == 6


async def test_who_has_lost_a_stream_does_not_close_it(client: Client) -> None:
    stream = await client.open()
    await attach(client, stream)
    request = pb.CloseStreamRequest(stream=stream, generation=0, request_id="mine")
    assert (await failure(client.attention.CloseStream(request))).reason == "STALE_GENERATION"
    request.generation = 1
    first = await client.attention.CloseStream(request)
    request.generation = 0
    assert await client.attention.CloseStream(request) == first
