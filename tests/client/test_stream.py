"""A remote stream does what a session in this process does, to the bit; both twins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from transports import to, waiting_channel_to

from rondel.client import AttentionClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    BudgetExceeded,
    ChunkTooLong,
    InvalidLayer,
    InvalidRequest,
    InvalidShape,
    InvalidSpec,
    LengthExceeded,
    QuotaExceeded,
    RollbackTooDeep,
    SequenceGap,
    SessionBusy,
    StreamClosed,
    StreamNotFound,
    ValueRange,
    WindowEvicted,
)
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import YarnScaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.v1 import attention_pb2
from rondel.v1.attention_pb2_grpc import AttentionServiceStub

SHAPE: dict[str, Any] = {"query_heads": 6, "kv_heads": 2, "head_dim": 16}
WINDOWED = StreamSpec.uniform(layers=2, window=64, sinks=4, reserve=16, **SHAPE)
WHOLE = StreamSpec.uniform(layers=3, max_length=400, storage="float32", value_dim=24, **SHAPE)
MIXED = StreamSpec(
    groups=(
        LayerGroup(
            layers=(0, 2), query_heads=4, kv_heads=2, key_dim=16, value_dim=8, window=32, rope=Rope(dim=12)
        ),
        LayerGroup(
            layers=(1,), query_heads=4, kv_heads=1, key_dim=24, value_dim=24,
            rope=Rope(interleaved=True, theta=1e6, scaling=YarnScaling(8.0, 64)),
        ),
    ),
    max_length=300,
)  # fmt: skip


class Source:
    """Random queries, keys and values of a specification's shapes."""

    def __init__(self, spec: StreamSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self.rng = rng

    def layer(self, layer: int, tokens: int) -> tuple[Any, Any, Any]:
        group = self.spec.group(layer)
        heads = (
            (group.query_heads, group.key_dim),
            (group.kv_heads, group.key_dim),
            (group.kv_heads, group.value_dim),
        )
        q, k, v = (self.rng.standard_normal((tokens, *shape), np.float32) for shape in heads)
        return q, k, v

    def all(self, tokens: int) -> tuple[Any, Any, Any]:
        layers = [self.layer(layer, tokens) for layer in range(self.spec.layers)]
        q, k, v = (np.stack(parts) for parts in zip(*layers, strict=True))
        return q, k, v


@pytest.fixture
def arena() -> Arena:
    return Arena(budget=64 << 20)


@pytest.fixture
def pair(client: Any, arena: Arena, request: pytest.FixtureRequest) -> Iterator[tuple[Any, DecoderSession]]:
    """A remote stream and a session of one specification."""
    spec: StreamSpec = request.param
    with client.open(spec) as stream, DecoderSession(spec, arena) as session:
        yield stream, session


def same(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("pair", [WINDOWED, WHOLE, MIXED], indirect=True, ids=["windowed", "whole", "mixed"])
def test_layer_calls_equal_the_session(pair: tuple[Any, DecoderSession], rng: np.random.Generator) -> None:
    stream, session = pair
    source = Source(session.spec, rng)
    for tokens in (1, 7, 90, 1, 60, 90):
        expected_parts = list(session.chunks(tokens))
        for part, expected_part in zip(stream.chunks(tokens), expected_parts, strict=True):
            assert part == expected_part
            size = part.stop - part.start
            for layer in range(session.spec.layers):
                q, k, v = source.layer(layer, size)
                out, lse = stream.step(layer, q, k, v, return_lse=True)
                session_out, session_lse = session.step(layer, q, k, v, return_lse=True)
                same(out, session_out)
                same(lse, session_lse)
                assert stream.layer_length(layer) == session.layer_length(layer)
            assert stream.length == session.length
    q, k, v = source.layer(0, 1)
    assert stream.append(0, k, v) == session.append(0, k, v)
    same(stream.attend(0, q), session.attend(0, q))
    same(stream.attend(0, q, position=stream.length - 5), session.attend(0, q, position=stream.length - 5))
    assert stream.stats().bytes_resident == session.stats().bytes_resident
    assert stream.stats().layer_lengths == tuple(map(session.layer_length, range(session.spec.layers)))
    assert stream.stats().quality is None
    assert stream.stats(quality=True).quality == session.stats(quality=True).quality


@pytest.mark.parametrize("pair", [WINDOWED, WHOLE], indirect=True, ids=["windowed", "whole"])
def test_all_layer_calls_and_truncate_equal_the_session(
    pair: tuple[Any, DecoderSession], rng: np.random.Generator
) -> None:
    stream, session = pair
    source = Source(session.spec, rng)
    q, k, v = source.all(300)
    assert stream.append_all(k, v) == session.append_all(k, v) == 300
    stream.truncate(290)
    session.truncate(290)
    assert (stream.generation, stream.length, stream.layer_length(1)) == (1, 290, 290)
    q, k, v = source.all(40)
    same(stream.step_all(q, k, v), session.step_all(q, k, v))
    assert stream.length == session.length == 330


def test_step_batch_gives_each_stream_its_own_answer(
    client: Any, arena: Arena, rng: np.random.Generator
) -> None:
    sizes = (1, 3, 2)
    source = Source(WINDOWED, rng)
    parts = [source.layer(1, size) for size in sizes]
    streams = [client.open(WINDOWED) for _ in sizes]
    wrong = np.full_like(parts[1][1], np.nan)
    keys = [parts[0][1], wrong, parts[2][1]]
    outcomes = client.step_batch(1, streams, [p[0] for p in parts], keys, [p[2] for p in parts])
    assert isinstance(outcomes[1].error, ValueRange)
    assert outcomes[1].out is None
    assert [stream.layer_length(1) for stream in streams] == [1, 0, 2]
    for index in (0, 2):
        with DecoderSession(WINDOWED, arena) as session:
            same(outcomes[index].out, session.step(1, *parts[index]))
    with pytest.raises(InvalidRequest, match="one length"):
        client.step_batch(1, streams, [], [], [])
    assert client.step_batch(1, [], [], [], []) == []


def test_errors_of_the_session_arrive_as_themselves(client: Any, rng: np.random.Generator) -> None:
    source = Source(WINDOWED, rng)
    with client.open(WINDOWED) as stream:
        q, k, v = source.layer(0, 2)
        with pytest.raises(InvalidShape) as shape:
            stream.step(0, q, k[:, :1], v)
        assert "[2, 1, 16]" in shape.value.got
        assert "2, 16]" in shape.value.expected
        with pytest.raises(InvalidShape):
            stream.append(0, k.astype(np.float64), v)
        with pytest.raises(ValueRange):
            stream.append(0, k * np.inf, v)
        with pytest.raises(InvalidLayer) as layer:
            stream.append(2, k, v)
        assert layer.value.layers == 2
        with pytest.raises(SequenceGap) as gap:
            stream.attend(0, q, position=5)
        assert gap.value.expected == 0
        with pytest.raises(SequenceGap):
            stream.truncate(1)
        assert stream.length == stream.stats().length == 0
        q, k, v = source.all(300)
        stream.append_all(k, v)
        with pytest.raises(ChunkTooLong) as chunk:
            stream.append(0, k[0, :18], v[0, :18])
        assert chunk.value.limit == 17
        with pytest.raises(RollbackTooDeep) as depth:
            stream.truncate(200)
        assert depth.value.limit == stream.stats().min_length
        with pytest.raises(WindowEvicted):
            stream.attend(0, q[0, :1], position=70)
        assert (stream.length, stream.layer_length(0), stream.generation) == (300, 300, 0)


def test_limits_of_the_server_arrive_as_themselves(client: Any, rng: np.random.Generator) -> None:
    huge = StreamSpec.uniform(layers=64, max_length=1 << 20, **SHAPE)
    with pytest.raises(BudgetExceeded) as budget:
        client.open(huge)
    assert budget.value.requested > budget.value.available > 0
    small = StreamSpec.uniform(layers=1, max_length=8, **SHAPE)
    _, k, v = Source(small, rng).layer(0, 9)
    with client.open(small) as stream, pytest.raises(LengthExceeded) as length:
        stream.append(0, k, v)
    assert length.value.limit == 8
    room = 64 - client.info().streams
    for _ in range(room):
        client.open(small)
    with pytest.raises(QuotaExceeded):
        client.open(small)


def test_messages_may_be_larger_than_grpc_s_own_limit(client: Any, rng: np.random.Generator) -> None:
    wide = StreamSpec.uniform(layers=1, query_heads=16, kv_heads=16, head_dim=256, max_length=512)
    q, k, v = Source(wide, rng).layer(0, 300)
    with client.open(wide) as stream:
        assert q.nbytes > 4 << 20  # the reply is as large
        assert stream.step(0, q, k, v).shape == (300, 16, 256)
        q, k, v = (np.concatenate([part, part]) for part in (q, k, v))
        with pytest.raises(QuotaExceeded, match="max_message_bytes"):
            stream.step(0, q, k, v)
        assert stream.stats().length == stream.length == 300


def test_close_gives_memory_back_and_may_be_repeated(client: Any) -> None:
    before = client.info().reserved
    stream = client.open(WHOLE)
    assert client.info().reserved > before
    stream.close()
    stream.close()
    assert client.info().reserved == before
    with pytest.raises(StreamClosed):
        stream.stats()


def test_closing_a_client_closes_its_streams(connect: Callable[..., Any], address: str) -> None:
    with AttentionClient(address, **to(address)) as other:
        before = other.info()
        client = connect(address)
        for _ in range(3):
            client.open(WHOLE)
        assert other.info().streams == before.streams + 3
        client.close()
        client.close()
        assert (other.info().streams, other.info().reserved) == (before.streams, before.reserved)


def test_stream_closed_behind_our_back(client: Any, address: str) -> None:
    stream = client.open(WHOLE)
    with waiting_channel_to(address) as channel:
        reference = attention_pb2.StreamRef(handle=stream.handle)
        AttentionServiceStub(channel).CloseStream(attention_pb2.CloseStreamRequest(stream=reference))
    with pytest.raises((StreamNotFound, StreamClosed)):
        stream.stats()
    stream.close()


def test_a_stream_has_one_caller_at_a_time(address: str, rng: np.random.Generator) -> None:
    _, k, v = Source(WHOLE, rng).layer(0, 1)
    with AttentionClient(address, **to(address)) as client, client.open(WHOLE) as stream:
        with stream.alone(), pytest.raises(SessionBusy):
            stream.append(0, k, v)
        assert stream.append(0, k, v) == 1


def test_streams_of_one_client_in_many_threads(address: str, arena: Arena, rng: np.random.Generator) -> None:
    sources = [Source(WINDOWED, np.random.default_rng(seed)) for seed in range(6)]
    inputs = [[source.layer(0, 1) for _ in range(30)] for source in sources]
    outputs: list[list[Any]] = [[] for _ in inputs]

    with AttentionClient(address, **to(address)) as client:

        def run(steps: list[Any], results: list[Any]) -> None:
            with client.open(StreamSpec.uniform(layers=1, window=64, **SHAPE)) as stream:
                results.extend(stream.step(0, *step) for step in steps)

        threads = [threading.Thread(target=run, args=pair) for pair in zip(inputs, outputs, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for steps, results in zip(inputs, outputs, strict=True):
        with DecoderSession(StreamSpec.uniform(layers=1, window=64, **SHAPE), arena) as session:
            for step, result in zip(steps, results, strict=True):
                same(result, session.step(0, *step))


def test_timeouts_must_make_sense() -> None:
    for timeout in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidSpec, match="timeout"):
            AttentionClient("127.0.0.1:1", timeout=timeout)
