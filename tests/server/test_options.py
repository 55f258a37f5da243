"""Options, further returns and seals over a real connection, by the bare contract."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, item

from rondel import Arena, AttendOptions, DecoderSession, StreamSpec
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import options_pb2
from rondel.v1.options import explanation_from_message, options_to_message
from rondel.v1.wire import from_tensor, to_tensor

MEMORY = StreamSpec.uniform(
    layers=1, query_heads=4, kv_heads=2, head_dim=16, value_dim=8, max_length=300, causal=False
)
TWO_SIDED = StreamSpec.uniform(
    layers=1, query_heads=4, kv_heads=2, head_dim=16, window=32, causal=False, window_right=16, reserve=8
)
OPTIONS = AttendOptions(softcap=2.0, null_logit=np.ones(4, np.float32), ranges=((0, 4), (50, 300)))


async def failure(call: object) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return Failure.of_call(caught.value)


def question(stream: pb.StreamRef, q: Any, **fields: Any) -> pb.AttendRequest:
    return pb.AttendRequest(stream=stream, q=to_tensor(q), **fields)


@pytest.fixture
async def filled(client: Client, tokens: Tokens) -> tuple[pb.StreamRef, DecoderSession]:
    stream, session = await client.open(), DecoderSession(SPEC, Arena(32 << 20))
    k, v = tokens.kv(200)
    await client.append(stream, 0, k, v)
    session.append_all(k, v)
    return stream, session


async def test_what_is_not_asked_for_is_not_there(
    client: Client, tokens: Tokens, filled: tuple[pb.StreamRef, DecoderSession]
) -> None:
    reply = await client.attention.Attend(question(filled[0], tokens.q(2)))
    assert {field.name for field, _ in reply.ListFields()} == {"out", "committed_length"}


async def test_all_that_can_be_asked_for_is_the_sessions(
    client: Client, tokens: Tokens, filled: tuple[pb.StreamRef, DecoderSession]
) -> None:
    stream, session = filled
    q = tokens.q(3)
    asked = {"position": 195, "layer": 1, "options": options_to_message(OPTIONS)}
    more = {"return_lse": True, "return_entropy": True, "top_k": 70, "explain": True}
    reply = await client.attention.Attend(question(stream, q, **asked, **more))
    out, lse = session.attend(1, q, position=195, options=OPTIONS, return_lse=True)
    np.testing.assert_array_equal(from_tensor(reply.out, name="out"), out)
    np.testing.assert_array_equal(from_tensor(reply.lse, name="lse"), lse)
    explained = session.explain(1, q, position=195, options=OPTIONS)
    np.testing.assert_array_equal(from_tensor(reply.entropy, name="entropy"), explained.entropy())
    positions, weights = explained.top_k(70)
    assert list(reply.top_positions) == positions.ravel().tolist()
    assert -1 in reply.top_positions
    np.testing.assert_array_equal(from_tensor(reply.top_weights, name="weights"), weights)
    back = explanation_from_message(reply.explanation)
    for name in type(explained).__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back, name), getattr(explained, name))


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"options": options_pb2.AttendOptions(temperature=-1)}, "INVALID_REQUEST", "temperature"),
        (
            {"options": options_pb2.AttendOptions(alibi=to_tensor(np.ones(3, np.float32)))},
            "INVALID_SHAPE",
            "alibi",
        ),
        (
            {"options": options_pb2.AttendOptions(bias=to_tensor(np.ones((1, 1, 100), np.float32)))},
            *("INVALID_SHAPE", "bias"),
        ),
        ({"options": options_pb2.AttendOptions(bias_first=-5)}, "INVALID_REQUEST", "bias_first"),
        ({"top_k": 4_000_000_000}, "INVALID_REQUEST", "q"),
    ],
)
async def test_what_cannot_be_answered_is_refused(
    client: Client,
    tokens: Tokens,
    filled: tuple[pb.StreamRef, DecoderSession],
    fields: dict[str, Any],
    reason: str,
    field: str,
) -> None:
    failed = await failure(client.attention.Attend(question(filled[0], tokens.q(1), **fields)))
    assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert failed.facts["field"] == field


async def test_looking_has_a_bound_in_scores_and_in_bytes(client: Client, rng: np.random.Generator) -> None:
    spec = StreamSpec.uniform(layers=1, query_heads=64, kv_heads=1, head_dim=8, max_length=1024)
    stream = await client.open(spec)
    k, v = rng.standard_normal((2, 1, 1000, 1, 8), np.float32)
    await client.append(stream, 0, k, v)
    q = rng.standard_normal((17, 64, 8), np.float32)
    for fields in ({"explain": True}, {"return_entropy": True}, {"top_k": 1}):
        failed = await failure(client.attention.Attend(question(stream, q, **fields)))
        assert failed.reason == "INVALID_REQUEST"
        assert "at most, got 17 rows x 64 heads x 1000 keys" in failed.message
    reply = await client.attention.Attend(question(stream, q[:16], return_entropy=True))
    assert from_tensor(reply.entropy, name="entropy").shape == (16, 64)
    # 16 bytes for each of a million scores just fit; the largest weights do not fit beside them.
    failed = await failure(client.attention.Attend(question(stream, q[:16], explain=True, top_k=100)))
    assert failed.reason == "INVALID_REQUEST"
    assert f"the server sends at most {ServerConfig().max_message_bytes}" in failed.message


async def test_a_step_takes_options_and_so_does_its_repetition(client: Client, tokens: Tokens) -> None:
    stream, session = await client.open(), DecoderSession(SPEC, Arena(32 << 20))
    q, k, v = tokens.qkv(5)
    part = item(stream, 0, q, k, v, lse=True)
    part.options.CopyFrom(options_to_message(OPTIONS))
    wrong = item(await client.open(), 0, q, k, v)
    wrong.options.softcap = -1
    first, refused = await client.step(0, part, wrong)
    out, lse = session.step(0, q, k, v, options=OPTIONS, return_lse=True)
    np.testing.assert_array_equal(from_tensor(first.out, name="out"), out)
    np.testing.assert_array_equal(from_tensor(first.lse, name="lse"), lse)
    assert Failure.of(refused.status).facts["field"] == "softcap"
    (again,) = await client.step(0, part)
    assert again.duplicate
    assert again.out == first.out


@pytest.mark.parametrize("spec", [MEMORY, TWO_SIDED], ids=["everything", "two-sided"])
async def test_a_step_that_sees_later_tokens_is_repeated_until_there_are_some(
    client: Client, rng: np.random.Generator, spec: StreamSpec
) -> None:
    stream, tokens = await client.open(spec), Tokens(rng, spec)
    parts = [item(stream, position, *tokens.qkv(3)) for position in (0, 3)]
    (first,) = await client.step(0, parts[0])
    (again,) = await client.step(0, parts[0])
    assert again.duplicate
    assert again.out == first.out
    await client.step(0, parts[1])
    (late,) = await client.step(0, parts[0])
    assert Failure.of(late.status).reason == "DUPLICATE_TOO_OLD"


async def test_a_memory_is_filled_sealed_and_only_attended_to(
    client: Client, rng: np.random.Generator
) -> None:
    stream, tokens = await client.open(MEMORY), Tokens(rng, MEMORY)
    k, v = tokens.kv(40)
    await client.append(stream, 0, k, v)
    stale = await failure(client.attention.SealStream(pb.SealStreamRequest(stream=stream, generation=1)))
    assert stale.reason == "STALE_GENERATION"
    assert not (await client.get(stream)).sealed
    for _ in range(2):
        reply = await client.attention.SealStream(pb.SealStreamRequest(stream=stream))
        assert reply.committed_length == 40
    assert (await client.get(stream)).sealed
    more = tokens.kv(1)
    undo = pb.TruncateStreamRequest(stream=stream, length=3)
    for call in (client.append(stream, 40, *more), client.attention.TruncateStream(undo)):
        failed = await failure(call)
        assert (failed.code, failed.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "STREAM_SEALED")
    (refused,) = await client.step(0, item(stream, 40, *tokens.qkv(1)))
    assert Failure.of(refused.status).reason == "STREAM_SEALED"
    assert (await client.append(stream, 0, k, v)).duplicate  # a lost reply may still be asked for
    q = tokens.q(60)  # more rows than keys
    with DecoderSession(MEMORY, Arena(8 << 20)) as session:
        session.append_all(k, v)
        np.testing.assert_array_equal(await client.attend(stream, 0, q), session.attend(0, q))
    placed = await failure(client.attend(stream, 0, q, position=0))
    assert (placed.reason, placed.facts["field"]) == ("INVALID_REQUEST", "position")


async def test_layers_must_be_level_to_be_sealed(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(2)
    await client.append(stream, 0, k[:1], v[:1])
    failed = await failure(client.attention.SealStream(pb.SealStreamRequest(stream=stream)))
    assert failed.reason == "SEQUENCE_GAP"
