"""Every part of a request has a bound, the protos state it, and the server keeps it."""

import math
import re
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from protocomments import COMMENTS, METHODS, fields_within
from rawclient import SPEC, Client, Failure, Tokens, item, refusal

from rondel.decoder import options, rope, rope_scaling, snapshot
from rondel.decoder import spec as limits
from rondel.decoder.lm import sampling, stops
from rondel.decoder.lm.encoder import MAX_WORD
from rondel.decoder.spec import StreamSpec
from rondel.server import bounds, returns, transfers
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2 as gen
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor


def test_every_text_and_list_of_a_request_is_bounded() -> None:
    sized = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    requests = fields_within(*(method.input_type for method in METHODS.values()))
    names = {field.full_name for field in requests if field.is_repeated or field.type in sized}
    assert names == set(bounds.FIELDS)


@pytest.mark.parametrize("name", list(bounds.FIELDS))
def test_the_protos_state_the_bound(name: str) -> None:
    bound = bounds.FIELDS[name]
    if name == "rondel.v1.TokenIds.ids":
        assert "the model's context" in COMMENTS[name]
    elif bound == bounds.BY_MESSAGE:
        assert "Bounded by the" in COMMENTS[name]
    else:
        assert re.search(rf"\b{bound}\b", COMMENTS[name]), COMMENTS[name]


def power(number: int) -> str:
    assert number & (number - 1) == 0
    return f"2^{number.bit_length() - 1}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LayerGroup.layers", f"from 0 to {limits.MAX_LAYERS - 1}"),
        ("LayerGroup.query_heads", f"from 1 to {limits.MAX_HEADS};"),
        ("LayerGroup.kv_heads", f"from 1 to {limits.MAX_HEADS}."),
        ("LayerGroup.key_dim", f"from 1 to {limits.MAX_DIM}."),
        ("LayerGroup.value_dim", f"from 1 to {limits.MAX_DIM}."),
        ("LayerGroup.window", f"from 1 to {power(limits.MAX_WINDOW)}."),
        ("LayerGroup.sinks", f"from 0 to {limits.MAX_SINKS}."),
        ("LayerGroup.reserve", f"from 0 to {power(limits.MAX_RESERVE)};"),
        ("LayerGroup.scale", f"at most {limits.MAX_SCALE:.0f}."),
        ("LayerGroup.window_right", f"from 0 to {power(limits.MAX_WINDOW)}."),
        ("AttendOptions.scale", f"at most {limits.MAX_SCALE:.0f}."),
        ("AttendOptions.temperature", f"at most {limits.MAX_SCALE:.0f}."),
        ("AttendOptions.softcap", f"to {limits.MAX_MAGNITUDE:g}.".replace("+", "")),
        ("AttendOptions.alibi", f"at most {limits.MAX_MAGNITUDE:g}".replace("+", "")),
        ("AttendOptions.bias", f"at most {options.MAX_BIAS:g};".replace("+", "")),
        ("AttendOptions.bias_first", f"from 0 to {power(limits.MAX_LENGTH)}."),
        ("KeyRange.high", f"at most {power(limits.MAX_LENGTH)}."),
        ("AttendRequest.return_entropy", f"at most {power(returns.MAX_SCORES)} then"),
        ("Rope.theta", f"from {rope.LEAST_THETA} to 10^{math.log10(rope.MAX_THETA):g}:"),
        ("Rope.dim", f"(at most {rope.MAX_DIM})."),
        ("LinearScaling.factor", f"from 1 to 10^{math.log10(rope_scaling.MAX_FACTOR):g}."),
        ("YarnScaling.beta_slow", f"from 10^{math.log10(rope_scaling.LEAST):g} to"),
        ("YarnScaling.original_context", f"from 1 to {power(rope_scaling.MAX_CONTEXT)}."),
        ("YarnScaling.attention_factor", f"at most {rope_scaling.MAX_MAGNITUDE_FACTOR:g}."),
        ("DivisorScaling.divisors", f"from 10^{math.log10(rope_scaling.LEAST):g} to 10^6;"),
        ("StreamSpec.max_length", f"from 1 to {power(limits.MAX_LENGTH)}."),
        ("GenerateRequest.window", f"from 1 to {power(limits.MAX_WINDOW)}."),
        ("GenerateRequest.sinks", f"from 0 to {limits.MAX_SINKS}."),
        ("GenerateRequest.reserve", f"from 0 to {power(limits.MAX_RESERVE)};"),
        ("GenerateRequest.temperature", f"from 0 to {sampling.MAX_TEMPERATURE:g}."),
        ("GenerateRequest.top_k", f"below {power(sampling.MAX_TOP_K + 1)}."),
        ("GenerateRequest.stop", f"each of 1 to {stops.MAX_STOP_BYTES} bytes"),
        ("GenerationService.Generate", f"more than {power(MAX_WORD)} characters"),
        ("GenerationService.Generate", "more than 4 MiB and 64 KiB"),
        ("AttentionService", "above 4 KiB, OpenStream requests above 1 MiB"),
        ("AttentionService", "ImportStream requests above 1049088 bytes"),
        ("ImportStreamRequest", "At most 1049088 bytes."),
        (
            "ExportStreamRequest.max_data_bytes",
            f"from {transfers.LEAST_PIECE} to {snapshot.PIECE_BYTES} (1 MiB)",
        ),
    ],
)
def test_the_protos_state_the_decoders_limits(name: str, words: str) -> None:
    assert words in COMMENTS[f"rondel.v1.{name}"]


def test_the_sizes_of_messages_are_those_stated() -> None:
    sizes = dict(bounds.MESSAGES)
    assert sizes.pop("rondel.v1.GenerateRequest") == (4 << 20) + (64 << 10)
    assert sizes.pop("rondel.v1.OpenStreamRequest") == 1 << 20
    assert sizes.pop("rondel.v1.ImportStreamRequest") == 1049088
    assert set(sizes.values()) == {4 << 10}


async def refused(call: object) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    failed = Failure.of_call(caught.value)
    assert (failed.code, failed.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    return failed


@pytest.mark.parametrize("name", ["x" * 129, "é" * 65, "x" * 1_000_000])
async def test_request_ids(client: Client, name: str) -> None:
    stream = await client.open()
    state = await client.get(stream)
    calls = [
        client.attention.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(SPEC), request_id=name)),
        client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, request_id=name)),
        client.attention.CloseStream(pb.CloseStreamRequest(stream=stream, request_id=name)),
        client.fork(stream, 0, request_id=name),
        client.fork(stream, 0, prefix=name),
        client.attention.OpenStream(pb.OpenStreamRequest(from_prefix=name)),
    ]
    for call in calls:
        failed = await refused(call)
        assert "128" in failed.message or "a " in failed.message
        assert failed.facts["field"]
    assert await client.get(stream) == state
    assert (await client.info()).streams == 1


async def test_request_ids_of_the_largest_size(client: Client) -> None:
    name = "é" * 64
    stream = await client.open(request_id=name)
    assert await client.open(request_id=name) == stream
    request = pb.TruncateStreamRequest(stream=stream, request_id=name)
    assert (await client.attention.TruncateStream(request)).generation == 1
    assert await client.close(stream, name) == await client.close(stream, name)


async def test_names_of_models(client: Client) -> None:
    failed = await refusal(client, gen.GenerateRequest(model="m" * 257, text="x"))
    assert (failed.reason, failed.facts["field"]) == ("INVALID_REQUEST", "model")
    assert (await refusal(client, gen.GenerateRequest(model="m" * 256, text="x"))).reason == "MODEL_NOT_FOUND"


async def test_a_message_over_the_limit_says_which_side(client: Client, server: Server) -> None:
    huge = np.zeros((3, 1, 2, server.config.max_message_bytes // 24), np.float32)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.append(pb.StreamRef(handle="x"), 0, huge, huge)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "SERVER" in (caught.value.details() or "")


async def test_a_reply_over_the_limit_is_refused_before_anything_changes(
    client: Client, server: Server
) -> None:
    # Keys of 1 and values of 1024: the reply is hundreds of times as large as the request.
    spec = StreamSpec.uniform(
        layers=1, query_heads=64, kv_heads=1, head_dim=1, value_dim=1024, max_length=900
    )
    stream = await client.open(spec)
    half = server.config.max_message_bytes // (64 * 1024 * 4) // 2 + 1
    q, k, v = Tokens(np.random.default_rng(5), spec).qkv(2 * half)
    (result,) = await client.step(0, item(stream, 0, q, k, v))
    failed = Failure.of(result.status)
    assert (failed.reason, failed.code) == ("INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT)
    assert (await client.get(stream)).high_water == 0
    other = await client.open(spec)
    items = [item(s, 0, q[:half], k[:half], v[:half]) for s in (stream, other)]
    first, second = await client.step(0, *items)
    assert first.status.code == 0
    assert Failure.of(second.status).reason == "INVALID_REQUEST"
    assert [(await client.get(s)).committed_length for s in (stream, other)] == [half, 0]
    await refused(client.attention.Attend(pb.AttendRequest(stream=stream, q=to_tensor(q))))


class TestGenerate:
    @pytest.fixture
    def config(self, model_path: Path) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=16 << 20, model=str(model_path))

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            (gen.GenerateRequest(text="x" * (10 << 20)), "INVALID_REQUEST"),
            (gen.GenerateRequest(text="x" * ((4 << 20) + 1)), "INVALID_REQUEST"),
            (gen.GenerateRequest(text="x" * (4 << 20)), "LENGTH_EXCEEDED"),
            (gen.GenerateRequest(tokens=gen.TokenIds(ids=[1] * 5_000_000)), "INVALID_REQUEST"),
            (gen.GenerateRequest(tokens=gen.TokenIds(ids=[1] * 4_000_000)), "LENGTH_EXCEEDED"),
            (
                gen.GenerateRequest(
                    chat=gen.Chat(messages=[gen.ChatMessage(role=gen.ROLE_USER, content="x" * 3_000_000)])
                ),
                "LENGTH_EXCEEDED",
            ),
            (
                gen.GenerateRequest(chat=gen.Chat(messages=[gen.ChatMessage(role=gen.ROLE_USER)] * 10_001)),
                "INVALID_REQUEST",
            ),
            (gen.GenerateRequest(text="x", stop=["a"] * 1_000_000), "INVALID_SPEC"),
        ],
        ids=["10 MiB", "4 MiB and 1", "4 MiB", "5M ids", "4M ids", "long message", "messages", "stops"],
    )
    async def test_floods(self, client: Client, request_: gen.GenerateRequest, reason: str) -> None:
        failed = await refusal(client, request_)
        assert failed.reason == reason
        assert failed.facts.get("field") or failed.facts.get("limit")
