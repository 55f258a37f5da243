"""Streams stepped by embeddings: to the bit what a session makes of them, and repeated safely."""

from pathlib import Path

import grpc
import numpy as np
import pytest
import tinysafetensors
from rawclient import SPEC, Client, Failure, Tokens, item
from transports import channel_to, listening

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import CorruptModel, InvalidSpec, ModelNotFound
from rondel.decoder.projection import Projections
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

D_MODEL = 20
NARROW = StreamSpec.uniform(layers=1, query_heads=2, kv_heads=1, head_dim=8, max_length=50)


@pytest.fixture
def made() -> Projections:
    return tinysafetensors.draw(SPEC, D_MODEL, biases=True)


@pytest.fixture
def config(tmp_path: Path, made: Projections) -> ServerConfig:
    one = tinysafetensors.save(tmp_path / "a=b.safetensors", made)
    other = tinysafetensors.save(tmp_path / "n.safetensors", tinysafetensors.draw(NARROW, 4), "BF16")
    return ServerConfig(port=0, budget_bytes=64 << 20, projections=(f"tiny={one}", f"narrow={other}"))


async def opened(
    client: Client, projections: str = "tiny", spec: StreamSpec = SPEC, request_id: str = ""
) -> pb.StreamRef:
    reply = await client.attention.OpenStream(
        pb.OpenStreamRequest(spec=spec_to_message(spec), projections=projections, request_id=request_id)
    )
    return pb.StreamRef(handle=reply.handle, epoch=reply.epoch)


def embedded(stream: pb.StreamRef, position: int, x: np.ndarray, *, generation: int = 0) -> pb.StepItem:
    return pb.StepItem(
        stream=stream, generation=generation, position=position, embeddings=to_tensor(x), return_lse=True
    )


def drawn(rng: np.random.Generator, tokens: int) -> np.ndarray:
    return rng.standard_normal((tokens, D_MODEL), np.float32)


async def test_the_answers_are_those_of_a_session(
    client: Client, rng: np.random.Generator, made: Projections
) -> None:
    local = DecoderSession(SPEC, Arena(budget=64 << 20), projections=made)
    stream = await opened(client)
    position = 0
    for count in (1, 9, 5, 1):
        x = drawn(rng, count)
        for layer in range(SPEC.layers):
            (result,) = await client.step(layer, embedded(stream, position, x))
            got = from_tensor(result.out, name="out")
            np.testing.assert_array_equal(got, local.step_embeddings(layer, x))
            assert from_tensor(result.lse, name="lse").shape == (count, 4)
        position += count
    assert result.committed_length == position


async def test_repeated_embeddings_are_known_however_they_are_cut(
    client: Client, rng: np.random.Generator
) -> None:
    stream = await opened(client)
    x = drawn(rng, 5)
    singles = []
    for i in range(5):
        (result,) = await client.step(0, embedded(stream, i, x[i : i + 1]))
        assert not result.duplicate
        singles.append(from_tensor(result.out, name="out"))
    (again,) = await client.step(0, embedded(stream, 0, x))
    assert again.duplicate
    np.testing.assert_array_equal(from_tensor(again.out, name="out"), np.concatenate(singles))
    (other,) = await client.step(0, embedded(stream, 0, x[::-1]))
    assert Failure.of(other.status).reason == "POSITION_CONFLICT"
    (gap,) = await client.step(0, embedded(stream, 6, x))
    assert Failure.of(gap.status).reason == "SEQUENCE_GAP"
    (stale,) = await client.step(0, embedded(stream, 5, x, generation=3))
    assert Failure.of(stale.status).reason == "STALE_GENERATION"
    assert list((await client.get(stream)).layer_lengths) == [5, 0, 0]


async def test_embeddings_and_queries_may_stand_in_one_step(client: Client, rng: np.random.Generator) -> None:
    one, other, tokens = await opened(client), await client.open(), Tokens(rng)
    results = await client.step(1, embedded(one, 0, drawn(rng, 2)), item(other, 0, *tokens.qkv(3)))
    assert [result.layer_length for result in results] == [2, 3]


async def test_wrong_items_change_nothing(client: Client, rng: np.random.Generator) -> None:
    stream, plain, x = await opened(client), await client.open(), drawn(rng, 2)
    both = embedded(stream, 0, x)
    both.k.CopyFrom(to_tensor(Tokens(rng).qkv(2)[1]))
    for request, layer, reason, field in (
        (both, 0, "INVALID_REQUEST", "embeddings"),
        (embedded(stream, 0, x[:, 1:]), 0, "INVALID_SHAPE", "embeddings"),
        (embedded(stream, 0, x[:0]), 0, "INVALID_SHAPE", "q"),
        (embedded(stream, 0, x * np.float32("nan")), 0, "VALUE_RANGE", "embeddings"),
        (embedded(stream, 0, x), 3, "INVALID_LAYER", "layer"),
        (embedded(plain, 0, x), 0, "PROJECTION_NOT_FOUND", None),
    ):
        (result,) = await client.step(layer, request)
        failure = Failure.of(result.status)
        assert (failure.reason, failure.facts.get("field")) == (reason, field)
    assert Failure.of(result.status).code == grpc.StatusCode.NOT_FOUND
    for ref in (stream, plain):
        assert (await client.get(ref)).high_water == 0


@pytest.mark.parametrize(
    ("name", "spec", "reason", "text"),
    [
        ("huge", SPEC, "PROJECTION_NOT_FOUND", "this server has projections tiny, narrow, got 'huge'"),
        ("n" * 129, SPEC, "INVALID_REQUEST", "at most 128 bytes"),
        ("tiny", NARROW, "INVALID_SHAPE", r"w_q of layer 0 must be [d_model, 16], got [20, 64]"),
        ("narrow", SPEC, "INVALID_SHAPE", r"w_q of layer 0 must be [d_model, 64], got [4, 16]"),
    ],
)
async def test_projections_that_a_stream_cannot_have_are_refused(
    client: Client, name: str, spec: StreamSpec, reason: str, text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await opened(client, name, spec)
    failure = Failure.of_call(caught.value)
    assert failure.reason == reason
    assert text in failure.message
    assert (await client.info()).streams == 0


async def test_a_repeated_open_names_the_same_projections(client: Client) -> None:
    first = await opened(client, request_id="r")
    assert await opened(client, request_id="r") == first
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await opened(client, "", request_id="r")
    assert Failure.of_call(caught.value).reason == "INVALID_REQUEST"


async def test_the_server_lists_its_projections(client: Client) -> None:
    assert list((await client.info()).projections) == ["tiny", "narrow"]


async def test_a_server_without_any_says_so(connect: object, client: Client) -> None:
    running = await Server.start(listening(ServerConfig(port=0)))
    async with channel_to(running.address) as channel:
        bare = Client(channel)
        assert list((await bare.info()).projections) == []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await opened(bare)
        assert Failure.of_call(caught.value).reason == "PROJECTION_NOT_FOUND"
    await running.stop(drain_seconds=0.5)


async def test_a_server_does_not_start_with_a_file_that_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"not a safetensors file")
    for file, error in (("bad", CorruptModel), ("none", ModelNotFound)):
        with pytest.raises(error) as caught:
            await Server.start(ServerConfig(port=0, projections=(f"p={tmp_path / file}",)))
        assert caught.value.facts["name"] == "p"


@pytest.mark.parametrize(
    "settings", [("file",), ("=file",), ("name=",), ("a\n=file",), ("n" * 129 + "=f",), ("a=f", "a=g"), (3,)]
)
def test_impossible_settings_are_refused(settings: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        ServerConfig(projections=settings)
    assert caught.value.field == "projections"
