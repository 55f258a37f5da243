"""Forks over the wire: made once, of the state that was meant, and independent of their streams."""

from collections.abc import Awaitable, Callable

import grpc
import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, item
from transports import listening

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor


def ref(reply: pb.OpenStreamResponse) -> pb.StreamRef:
    return pb.StreamRef(handle=reply.handle, epoch=reply.epoch)


async def failure(call: Awaitable[object]) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def grown(client: Client, tokens: Tokens, count: int) -> tuple[pb.StreamRef, DecoderSession]:
    """A stream, and a session here that holds the same."""
    stream, here = await client.open(), DecoderSession(SPEC, Arena(16 << 20))
    k, v = tokens.kv(count)
    await client.append(stream, 0, k, v)
    here.append_all(k, v)
    return stream, here


@pytest.mark.parametrize("count", [1, 100, 400])
async def test_a_fork_and_its_stream_part_ways(client: Client, tokens: Tokens, count: int) -> None:
    stream, here = await grown(client, tokens, count)
    reply = await client.fork(stream, count)
    assert reply.handle != stream.handle
    assert (reply.committed_length, reply.generation, list(reply.layer_lengths)) == (count, 0, [count] * 3)
    assert reply.spec == (await client.get(stream)).spec
    for one, twin in ((stream, here), (ref(reply), here.fork())):
        q, k, v = tokens.qkv(3)
        (result,) = await client.step(1, item(one, count, q, k, v))
        assert from_tensor(result.out, name="out").tobytes() == twin.step(1, q, k, v).tobytes()
    await client.close(stream)
    held = await client.get(ref(reply))
    assert (list(held.layer_lengths), held.bytes_shared) == ([count, count + 3, count], 0)
    await client.close(ref(reply))
    memory = (await client.info()).memory
    assert (memory.reserved, memory.resident, memory.shared) == (0, 0, 0)


async def test_memory_is_counted_once(client: Client, tokens: Tokens) -> None:
    stream, _ = await grown(client, tokens, 100)
    alone = (await client.info()).memory
    forks = [await client.fork(stream, 100, most=20) for _ in range(20)]
    memory = (await client.info()).memory
    assert memory.resident == memory.shared == alone.resident
    first = await client.get(ref(forks[0]))
    assert first.bytes_shared == first.bytes_resident == alone.resident
    whole = (await client.get(stream)).bytes_reserved
    assert 0 < first.bytes_reserved == forks[0].bytes_reserved < whole
    released = [(await client.close(one)).bytes_released for one in (stream, *map(ref, forks))]
    assert sum(released) == whole + 20 * first.bytes_reserved
    assert released[0] < whole
    assert (await client.info()).memory.reserved == 0


async def test_a_repeated_fork_is_answered_again(client: Client, tokens: Tokens) -> None:
    """Also when the stream has gone on, was truncated, or is closed."""
    stream, _ = await grown(client, tokens, 10)
    first = await client.fork(stream, 10, request_id="once", most=5)
    await client.append(stream, 10, *tokens.kv(1))
    assert await client.fork(stream, 10, request_id="once", most=5) == first
    truncate = pb.TruncateStreamRequest(stream=stream, length=3)
    await client.attention.TruncateStream(truncate)
    assert await client.fork(stream, 10, request_id="once", most=5) == first
    await client.close(stream)
    again = await client.fork(stream, 10, request_id="once", most=5)
    assert (again.handle, again.committed_length) == (first.handle, 10)
    assert again.bytes_reserved > first.bytes_reserved  # it pays for what they shared now
    assert (await client.info()).streams == 1
    others: list[dict[str, int | None]] = [{"most": 6}, {"most": None}, {"most": 5, "generation": 1}]
    for other in others:
        failed = await failure(client.fork(stream, 10, request_id="once", **other))  # type: ignore[arg-type]
        assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "request_id")
    failed = await failure(client.open(request_id="once"))
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "request_id")
    await client.close(ref(first))
    failed = await failure(client.fork(stream, 10, request_id="once", most=5))
    assert failed.reason == "STREAM_CLOSED"


async def test_a_fork_of_another_state_is_refused(client: Client, tokens: Tokens) -> None:
    stream, _ = await grown(client, tokens, 10)
    for length in (0, 9, 11, 2**40):
        failed = await failure(client.fork(stream, length))
        assert (failed.reason, failed.facts["expected"]) == ("SEQUENCE_GAP", "10")
    assert (await failure(client.fork(stream, 10, generation=1))).reason == "STALE_GENERATION"
    for length in (-1, 2**63 - 1):
        failed = await failure(client.fork(stream, length))
        assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "length")
    for most in (-1, -(2**63)):
        failed = await failure(client.fork(stream, 10, most=most))
        assert failed.reason == "INVALID_REQUEST"
    nobody = pb.StreamRef(handle="nobody")
    assert (await failure(client.fork(nobody, 0))).reason == "STREAM_NOT_FOUND"
    assert (await client.info()).streams == 1


async def test_a_fork_takes_no_more_than_it_reserved(client: Client, tokens: Tokens) -> None:
    stream, _ = await grown(client, tokens, 10)
    fork = ref(await client.fork(stream, 10, most=4))
    before = await client.get(fork)
    failed = await failure(client.append(fork, 10, *tokens.kv(5)))
    assert (failed.code, failed.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert await client.get(fork) == before
    k, v = tokens.kv(4)
    await client.append(fork, 10, k, v)
    assert (await client.append(fork, 10, k, v)).duplicate
    (result,) = await client.step(0, item(fork, 14, *tokens.qkv(1)))
    assert result.status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


async def test_a_server_without_room_for_a_fork(tokens: Tokens, connect: Callable[[str], Client]) -> None:
    config = ServerConfig(port=0, budget_bytes=4 << 20, max_streams=3, drain_seconds=0.5)
    server = await Server.start(listening(config))
    try:
        client = connect(server.address)
        large = StreamSpec.uniform(
            layers=3, query_heads=4, kv_heads=2, head_dim=16, value_dim=8, max_length=12_000
        )
        opened = await client.attention.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(large)))
        before = await client.info()
        assert (await failure(client.fork(ref(opened), 0))).reason == "BUDGET_EXCEEDED"
        assert await client.info() == before
        for _ in range(2):
            await client.fork(ref(opened), 0, most=100)
        assert (await failure(client.fork(ref(opened), 0, most=0))).reason == "QUOTA_EXCEEDED"
    finally:
        await server.stop(drain_seconds=0.5)


async def test_streams_that_begin_with_a_named_prefix(client: Client, tokens: Tokens) -> None:
    stream, here = await grown(client, tokens, 50)
    kept = await client.fork(stream, 50, prefix="system prompt", request_id="keep")
    assert await client.fork(stream, 50, prefix="system prompt", request_id="keep") == kept
    await client.close(stream)
    assert (await failure(client.append(ref(kept), 50, *tokens.kv(1)))).reason == "QUOTA_EXCEEDED"
    requests = [
        pb.OpenStreamRequest(from_prefix="system prompt", request_id="a", max_new_tokens=9),
        pb.OpenStreamRequest(from_prefix="system prompt", spec=spec_to_message(SPEC)),
    ]
    opened = [await client.attention.OpenStream(request) for request in requests]
    assert await client.attention.OpenStream(requests[0]) == opened[0]
    for reply in opened:
        assert (reply.committed_length, reply.generation) == (50, 0)
        q, k, v = tokens.qkv(2)
        (result,) = await client.step(2, item(ref(reply), 50, q, k, v))
        assert from_tensor(result.out, name="out").tobytes() == here.fork().step(2, q, k, v).tobytes()
    assert (await failure(client.append(ref(opened[0]), 50, *tokens.kv(10)))).reason == "SEQUENCE_GAP"
    await client.close(ref(kept))
    failed = await failure(client.attention.OpenStream(requests[1]))
    assert (failed.reason, failed.facts["prefix"]) == ("STREAM_NOT_FOUND", "system prompt")
    for reply in opened:
        q = np.zeros((1, 4, 16), np.float32)
        assert (await client.attend(ref(reply), 0, q)).shape == (1, 4, 8)
        await client.close(ref(reply))
    memory = (await client.info()).memory
    assert (memory.reserved, memory.resident) == (0, 0)


async def test_prefixes_that_cannot_be(client: Client, tokens: Tokens) -> None:
    stream, _ = await grown(client, tokens, 5)
    await client.fork(stream, 5, prefix="p")
    failed = await failure(client.fork(stream, 5, prefix="p"))
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "prefix_name")
    failed = await failure(client.fork(stream, 5, prefix="q", most=1))
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "max_new_tokens")
    other = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, window=64)
    for request, field in (
        (pb.OpenStreamRequest(from_prefix="p", spec=spec_to_message(other)), "spec"),
        (pb.OpenStreamRequest(spec=spec_to_message(SPEC), max_new_tokens=3), "max_new_tokens"),
        (pb.OpenStreamRequest(), "spec"),
        (pb.OpenStreamRequest(from_prefix="p", max_new_tokens=-1), "max_new_tokens"),
    ):
        failed = await failure(client.attention.OpenStream(request))
        assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", field)
    assert (await client.info()).streams == 2
