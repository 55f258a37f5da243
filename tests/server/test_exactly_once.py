"""Repeated, conflicting, late and stale requests."""

import asyncio
from collections.abc import Awaitable

import grpc
import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, item

from rondel.decoder.spec import MAX_LENGTH, LayerGroup, StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import spec_pb2
from rondel.v1.specs import spec_to_message

ONE = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=2, head_dim=16, value_dim=8, window=64, reserve=8)


async def failure(call: Awaitable[object]) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def snapshot(client: Client, stream: pb.StreamRef) -> bytes:
    return (await client.get(stream)).SerializeToString(deterministic=True)


async def test_a_repeated_append_changes_nothing(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(10)
    await client.append(stream, 0, k, v)
    before = await snapshot(client, stream)
    reply = await client.append(stream, 0, k, v)
    assert (reply.duplicate, reply.committed_length, reply.layer_length) == (True, 10, 10)
    part = await client.append(stream, 3, k[:, 3:7], v[:, 3:7])
    assert part.duplicate
    assert await snapshot(client, stream) == before


async def test_a_repeated_step_gives_the_same_answer(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    q, k, v = tokens.qkv(5)
    (first,) = await client.step(0, item(stream, 0, q, k, v, lse=True))
    (_,) = await client.step(0, item(stream, 5, *tokens.qkv(3)))
    before = await snapshot(client, stream)
    (again,) = await client.step(0, item(stream, 0, q, k, v, lse=True))
    assert again.duplicate
    assert not first.duplicate
    assert again.out == first.out
    assert again.lse == first.lse
    assert again.layer_length == 8
    assert await snapshot(client, stream) == before


@pytest.mark.every_transport
async def test_other_bytes_are_a_conflict(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(4)
    await client.append(stream, 0, k, v)
    before = await snapshot(client, stream)
    v[2, 3, 1, 7] += 1.0
    failed = await failure(client.append(stream, 0, k, v))
    assert failed.reason == "POSITION_CONFLICT"
    assert failed.code == grpc.StatusCode.ALREADY_EXISTS
    assert failed.facts["expected"] == "4"
    (result,) = await client.step(0, item(stream, 3, *tokens.qkv(1)))
    assert Failure.of(result.status).reason == "POSITION_CONFLICT"
    assert result.committed_length == 4
    assert await snapshot(client, stream) == before


@pytest.mark.parametrize(("position", "count"), [(5, 1), (3, 2), (2, 10), (1000, 1)])
async def test_gaps_and_partial_overlaps_name_the_position_expected(
    client: Client, tokens: Tokens, position: int, count: int
) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(4))
    before = await snapshot(client, stream)
    failed = await failure(client.append(stream, position, *tokens.kv(count)))
    assert (failed.reason, failed.facts["expected"]) == ("SEQUENCE_GAP", "4")
    (result,) = await client.step(1, item(stream, position, *tokens.qkv(count)))
    assert Failure.of(result.status).facts["expected"] == "4"
    assert await snapshot(client, stream) == before


async def test_layers_that_are_not_level_are_a_gap(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(2)
    await client.append(stream, 0, k[:1], v[:1])
    failed = await failure(client.append(stream, 0, k, v))
    assert (failed.reason, failed.facts["expected"]) == ("SEQUENCE_GAP", "0")
    assert (await client.append(stream, 0, k[1:], v[1:], layer=1)).committed_length == 2


async def test_what_the_ring_has_passed_is_too_old(client: Client, tokens: Tokens) -> None:
    stream = await client.open(ONE)
    one = Tokens(np.random.default_rng(1), ONE)
    k, v = one.kv(500)
    await client.append(stream, 0, k, v)
    failed = await failure(client.append(stream, 0, k[:, :5], v[:, :5]))
    assert failed.reason == "DUPLICATE_TOO_OLD"
    assert failed.code == grpc.StatusCode.FAILED_PRECONDITION
    assert (await client.append(stream, 495, k[:, 495:], v[:, 495:])).duplicate


async def test_tokens_whose_window_is_gone_are_too_old_to_answer(client: Client) -> None:
    stream = await client.open(ONE)
    one = Tokens(np.random.default_rng(1), ONE)
    q, k, v = one.qkv(500)
    await client.append(stream, 0, k[None], v[None])
    reasons = {}
    for position in range(0, 500, 10):
        row = slice(position, position + 1)
        (result,) = await client.step(0, item(stream, position, q[row], k[row], v[row]))
        reasons[position] = Failure.of(result.status).reason if result.status.code else "OK"
    assert set(reasons.values()) == {"DUPLICATE_TOO_OLD", "OK"}
    assert reasons[490] == "OK"
    assert (await client.get(stream)).committed_length == 500


async def test_an_old_generation_is_stale(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(10)
    await client.append(stream, 0, k, v)
    await client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=5))
    before = await snapshot(client, stream)
    failed = await failure(client.append(stream, 5, k[:, 5:], v[:, 5:]))
    assert (failed.reason, failed.facts["current"]) == ("STALE_GENERATION", "1")
    assert failed.code == grpc.StatusCode.ABORTED
    (result,) = await client.step(0, item(stream, 5, *tokens.qkv(1)))
    assert Failure.of(result.status).reason == "STALE_GENERATION"
    assert (await failure(client.attend(stream, 0, tokens.q(1)))).reason == "STALE_GENERATION"
    assert await snapshot(client, stream) == before


async def test_a_repeated_truncate_is_answered_again(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(10))
    request = pb.TruncateStreamRequest(stream=stream, length=6, request_id="undo-1")
    first = await client.attention.TruncateStream(request)
    assert await client.attention.TruncateStream(request) == first
    for change in ({"length": 5}, {"generation": 1}, {"length": 7, "generation": 1}):
        fields = {"stream": stream, "length": 6, "request_id": "undo-1"} | change
        other = await failure(client.attention.TruncateStream(pb.TruncateStreamRequest(**fields)))
        assert (other.reason, other.facts["field"]) == ("INVALID_REQUEST", "request_id")
    assert (await client.get(stream)).generation == 1
    request.request_id = ""
    assert (await failure(client.attention.TruncateStream(request))).reason == "STALE_GENERATION"


async def test_a_truncate_is_not_answered_again_after_another(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(10))
    first = pb.TruncateStreamRequest(stream=stream, length=6, request_id="a")
    await client.attention.TruncateStream(first)
    await client.attention.TruncateStream(
        pb.TruncateStreamRequest(stream=stream, length=3, generation=1, request_id="b")
    )
    assert (await failure(client.attention.TruncateStream(first))).reason == "STALE_GENERATION"


async def test_truncating_too_far_either_way_is_refused(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(500))
    before = await snapshot(client, stream)
    deep = await failure(client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=491)))
    assert (deep.reason, deep.facts["limit"]) == ("ROLLBACK_TOO_DEEP", "492")
    far = await failure(client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=501)))
    assert (far.reason, far.facts["expected"]) == ("SEQUENCE_GAP", "500")
    assert await snapshot(client, stream) == before


async def test_a_repeated_open_gives_the_same_stream(client: Client) -> None:
    request = pb.OpenStreamRequest(spec=spec_to_message(SPEC), request_id="open-1")
    replies = await asyncio.gather(*(client.attention.OpenStream(request) for _ in range(8)))
    assert len({reply.handle for reply in replies}) == 1
    assert (await client.info()).streams == 1
    other = pb.OpenStreamRequest(spec=spec_to_message(ONE), request_id="open-1")
    assert (await failure(client.attention.OpenStream(other))).reason == "INVALID_REQUEST"
    await client.close(pb.StreamRef(handle=replies[0].handle))
    assert (await client.attention.OpenStream(request)).handle != replies[0].handle


async def test_defaults_that_are_spelled_out_are_the_same_specification(client: Client) -> None:
    spec = StreamSpec(
        groups=tuple(
            LayerGroup(layers=(n,), query_heads=2, kv_heads=1, key_dim=8, value_dim=8, window=16 * n + 16)
            for n in range(2)
        )
    )
    brief = spec_to_message(spec)
    full = spec_to_message(spec, in_force=True)
    for group in brief.groups:
        group.ClearField("storage")
    full.max_length = MAX_LENGTH
    swapped = spec_pb2.StreamSpec(groups=[full.groups[1], full.groups[0]])
    replies = [
        await client.attention.OpenStream(pb.OpenStreamRequest(spec=message, request_id="same"))
        for message in (brief, full, swapped)
    ]
    assert len({reply.handle for reply in replies}) == 1
    full.groups[0].scale *= 2
    request = pb.OpenStreamRequest(spec=full, request_id="same")
    assert (await failure(client.attention.OpenStream(request))).reason == "INVALID_REQUEST"


async def test_a_repeated_close_is_answered_again(client: Client) -> None:
    stream = await client.open()
    first = await client.close(stream, "close-1")
    assert await client.close(stream, "close-1") == first
    for request_id in ("", "close-2"):
        failed = await failure(client.close(stream, request_id))
        assert (failed.reason, failed.code) == ("STREAM_CLOSED", grpc.StatusCode.NOT_FOUND)


async def test_racing_repetitions_are_applied_once(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    q, k, v = tokens.qkv(4)
    calls = [client.step(0, item(stream, 0, q, k, v)) for _ in range(16)]
    results = [result for (result,) in await asyncio.gather(*calls)]
    assert sum(result.duplicate for result in results) == 15
    assert all(result.out == results[0].out for result in results)
    assert (await client.get(stream)).layer_lengths[0] == 4
