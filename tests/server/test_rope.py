"""Streams whose keys the server turns: the same bits as in this process, and repeated safely."""

from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from rawclient import Client, Failure, Tokens, item

from rondel.decoder.cache.arena import Arena
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import Llama3Scaling, Scaling, YarnScaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import rope_pb2
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor

SHAPE: dict[str, Any] = {"layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 8}


def spec_of(scaling: Scaling | None, *, interleaved: bool = False, dim: int | None = None) -> StreamSpec:
    rope = Rope(theta=500_000.0, dim=dim, interleaved=interleaved, scaling=scaling)
    return StreamSpec.uniform(**SHAPE, window=64, reserve=8, rope=rope)


TURNED = spec_of(Llama3Scaling(8.0, 1.0, 4.0, 64))


@pytest.mark.parametrize(
    "spec",
    [TURNED, spec_of(YarnScaling(4.0, 2048), interleaved=True, dim=10), spec_of(None)],
    ids=["llama3", "yarn, interleaved, in part", "plain"],
)
async def test_the_answers_are_those_of_a_session(
    client: Client, rng: np.random.Generator, spec: StreamSpec
) -> None:
    local = DecoderSession(spec, Arena(budget=64 << 20))
    tokens = Tokens(rng, spec)
    stream = await client.open(spec)
    position = 0
    for count in (1, 9, 100, 200, 1):
        k, v = tokens.kv(count)
        local.append_all(k, v)
        await client.append(stream, position, k, v)
        position += count
        for layer in range(2):
            q = tokens.q(1)
            np.testing.assert_array_equal(await client.attend(stream, layer, q), local.attend(layer, q))
        k, v = tokens.kv(2)
        for layer in range(2):
            q = tokens.q(2)
            expected, lse = local.step(layer, q, k[layer], v[layer], return_lse=True)
            (result,) = await client.step(layer, item(stream, position, q, k[layer], v[layer], lse=True))
            np.testing.assert_array_equal(from_tensor(result.out, name="out"), expected)
            np.testing.assert_array_equal(from_tensor(result.lse, name="lse"), lse)
        position += 2


async def test_a_repeated_step_is_compared_as_it_is_stored(client: Client, rng: np.random.Generator) -> None:
    tokens = Tokens(rng, TURNED)
    stream = await client.open(TURNED)
    await client.append(stream, 0, *tokens.kv(300))
    q, k, v = tokens.qkv(3)
    (first,) = await client.step(0, item(stream, 300, q, k, v))
    (again,) = await client.step(0, item(stream, 300, q, k, v))
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.out == first.out
    # What the key looks like in the cache is not what was sent.
    rope = TURNED.groups[0].rope
    assert rope is not None
    (other,) = await client.step(0, item(stream, 300, q, rope.rotate(k, np.arange(300, 303)), v))
    assert Failure.of(other.status).reason == "POSITION_CONFLICT"


async def test_the_reply_to_open_has_the_rope_in_force(client: Client) -> None:
    message = spec_to_message(spec_of(YarnScaling(4.0, 4096)))
    brief = rope_pb2.Rope(theta=500_000.0, yarn=rope_pb2.YarnScaling(factor=4.0, original_context=4096))
    replies = []
    for rope in (brief, message.groups[0].rope):
        message.groups[0].rope.CopyFrom(rope)
        request = pb.OpenStreamRequest(spec=message, request_id="one")
        replies.append(await client.attention.OpenStream(request))
    assert replies[0].handle == replies[1].handle  # defaults spelled out are the same specification
    in_force = replies[0].spec.groups[0].rope
    assert (in_force.dim, in_force.yarn.beta_fast, in_force.yarn.truncate) == (16, 32.0, True)
    assert in_force.yarn.attention_factor == pytest.approx(1.138629)


async def test_an_impossible_rope_is_refused_by_name(client: Client) -> None:
    message = spec_to_message(TURNED)
    message.groups[0].rope.dim = 18
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.attention.OpenStream(pb.OpenStreamRequest(spec=message))
    failed = Failure.of_call(caught.value)
    assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SPEC")
    assert "at most the key_dim of 16, got 18" in failed.message
    details = error_details_pb2.BadRequest()
    assert any(detail.Unpack(details) for detail in failed.status.details)
    assert details.field_violations[0].field == "dim"
    assert (await client.info()).streams == 0
