"""Options by their names in both clients: to the bit what a session in this process answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rondel import Arena, AttendOptions, DecoderSession, StreamSpec, merge_partials
from rondel.decoder.errors import (
    ChunkTooLong,
    InvalidRequest,
    InvalidShape,
    QuotaExceeded,
    StreamSealed,
    ValueRange,
)

SPEC = StreamSpec.uniform(layers=2, query_heads=6, kv_heads=2, head_dim=16, window=64, sinks=4, reserve=16)
TWO_SIDED = StreamSpec.uniform(
    layers=2, query_heads=4, kv_heads=2, head_dim=16, window=40, causal=False, window_right=9, reserve=30
)
LOOKUP = StreamSpec.uniform(
    layers=1, query_heads=1, kv_heads=1, head_dim=2, value_dim=3, max_length=8, storage="float32"
)


@pytest.fixture
def pair(client: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, DecoderSession]]:
    with client.open(request.param) as stream, DecoderSession(request.param, Arena(32 << 20)) as session:
        yield stream, session


def drawn(spec: StreamSpec, rng: np.random.Generator, tokens: int) -> tuple[Any, Any, Any]:
    group, layers = spec.group(0), spec.layers
    q = rng.standard_normal((layers, tokens, group.query_heads, group.key_dim), np.float32)
    k, v = rng.standard_normal((2, layers, tokens, group.kv_heads, group.key_dim), np.float32)
    return q, k, v


def everything(rng: np.random.Generator, heads: int, rows: int, high: int) -> AttendOptions:
    bias = rng.standard_normal((heads, rows, high)).astype(np.float32)
    return AttendOptions(
        scale=0.3,
        temperature=1.5,
        softcap=4.0,
        alibi=np.full(heads, 0.01, np.float32),
        bias=bias,
        mask=bias[:1] < 1,
        ranges=((0, 2), (3, 100_000)),
        null_logit=np.zeros(heads, np.float32),
    )


@pytest.mark.parametrize("pair", [SPEC, TWO_SIDED], indirect=True, ids=["causal", "two-sided"])
def test_calls_with_options_equal_the_session(
    pair: tuple[Any, DecoderSession], rng: np.random.Generator
) -> None:
    stream, session = pair
    heads = session.spec.group(0).query_heads
    q, k, v = drawn(session.spec, rng, 150)
    stream.append_all(k, v)
    session.append_all(k, v)
    asked = everything(rng, heads, 5, 150)
    for position in (None, 141):
        got = stream.attend(1, q[1, :5], position=position, options=asked, return_lse=True)
        want = session.attend(1, q[1, :5], position=position, options=asked, return_lse=True)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
        explained = stream.explain(1, q[1, :5], position=position, options=asked)
        theirs = session.explain(1, q[1, :5], position=position, options=asked)
        np.testing.assert_array_equal(explained.weights, theirs.weights)
        np.testing.assert_array_equal(explained.entropy(), theirs.entropy())
        np.testing.assert_array_equal(explained.top_k(9)[0], theirs.top_k(9)[0])
    q, k, v = drawn(session.spec, rng, 3)
    for layer in range(2):
        asked = everything(rng, heads, 3, 153)
        got = stream.step(layer, q[layer], k[layer], v[layer], options=asked, return_lse=True)
        want = session.step(layer, q[layer], k[layer], v[layer], options=asked, return_lse=True)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("pair", [SPEC], indirect=True)
def test_steps_of_all_layers_cut_the_options_with_the_rows(
    pair: tuple[Any, DecoderSession], rng: np.random.Generator
) -> None:
    stream, session = pair
    q, k, v = drawn(SPEC, rng, 210)
    asked = everything(rng, 6, 210, 210)
    got, want = stream.step_all(q, k, v, options=asked), session.step_all(q, k, v, options=asked)
    np.testing.assert_allclose(got, want, atol=1e-6)  # the pieces differ, and with them the splits
    with pytest.raises(InvalidShape, match="bias"):
        stream.step_all(q, k, v, options=everything(rng, 6, 209, 420))


@pytest.mark.parametrize("pair", [TWO_SIDED], indirect=True)
def test_rows_that_look_ahead_are_not_cut(pair: tuple[Any, DecoderSession], rng: np.random.Generator) -> None:
    stream, session = pair
    q, k, v = drawn(TWO_SIDED, rng, 200)
    np.testing.assert_array_equal(stream.step_all(q, k, v), session.step_all(q, k, v))
    for one in (stream, session):
        with pytest.raises(ChunkTooLong) as caught:
            one.step_all(q, k, v)
        assert caught.value.limit == 56
        assert one.length == 200


def test_a_batch_gives_each_stream_its_options(client: Any, rng: np.random.Generator) -> None:
    streams = [client.open(SPEC) for _ in range(3)]
    q, k, v = drawn(SPEC, rng, 2)
    each = [None, AttendOptions(softcap=0.1), AttendOptions(bias=np.zeros((1, 1, 1), np.float32))]
    outcomes = client.step_batch(0, streams, [q[0]] * 3, [k[0]] * 3, [v[0]] * 3, options=each)
    with DecoderSession(SPEC, Arena(32 << 20)) as session:
        np.testing.assert_array_equal(outcomes[0].out, session.step(0, q[0], k[0], v[0]))
        np.testing.assert_array_equal(outcomes[1].out, session.attend(0, q[0], options=each[1]))
    assert isinstance(outcomes[2].error, InvalidShape)
    assert [stream.layer_length(0) for stream in streams] == [2, 2, 0]
    with pytest.raises(InvalidRequest, match="of one length"):
        client.step_batch(0, streams, [q[0]] * 3, [k[0]] * 3, [v[0]] * 3, options=each[:2])


@pytest.mark.parametrize("pair", [LOOKUP], indirect=True)
def test_the_worked_lookup(pair: tuple[Any, DecoderSession]) -> None:
    stream, _ = pair
    k = np.array([[1, 0], [0, 2], [2, 2], [-1, 1]], np.float32)[:, None]
    v = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.float32)[:, None]
    q = np.array([[[2, 1]]], np.float32)
    stream.append(0, k, v)
    explained = stream.explain(0, q)
    np.testing.assert_allclose(explained.raw[0, 0], np.array([2, 2, 6, -1]) / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(explained.weights[0, 0], [0.053, 0.053, 0.889, 0.006], atol=1e-3)
    np.testing.assert_allclose(stream.attend(0, q)[0, 0], [0.059, 0.059, 0.894], atol=1e-3)
    halves = [
        stream.attend(0, q, options=AttendOptions(ranges=(part,)), return_lse=True)
        for part in ((0, 2), (2, 4))
    ]
    out, _ = merge_partials([out for out, _ in halves], [lse for _, lse in halves])
    np.testing.assert_allclose(out, stream.attend(0, q), rtol=1e-6)


def test_a_memory_is_sealed(client: Any, rng: np.random.Generator) -> None:
    spec = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=16, max_length=64, causal=False)
    q, k, v = drawn(spec, rng, 20)
    with client.open(spec) as stream, DecoderSession(spec, Arena(8 << 20)) as session:
        assert not stream.spec.group(0).causal
        for one in (stream, session):
            one.append_all(k, v)
            one.seal()
            one.seal()
            assert one.stats().sealed
            for call in (
                lambda one=one: one.append_all(k, v),
                lambda one=one: one.step_all(q, k, v),
                lambda one=one: one.append(0, k[0], v[0]),
                lambda one=one: one.step(0, q[0], k[0], v[0]),
                lambda one=one: one.truncate(3),
            ):
                with pytest.raises(StreamSealed):
                    call()
            assert (one.length, one.generation) == (20, 0)
        np.testing.assert_array_equal(stream.attend(1, q[0, :7]), session.attend(1, q[0, :7]))


@pytest.mark.parametrize("pair", [SPEC], indirect=True)
def test_refusals_have_the_sessions_classes(
    pair: tuple[Any, DecoderSession], rng: np.random.Generator
) -> None:
    stream, session = pair
    q, k, v = drawn(SPEC, rng, 9)
    for one in (stream, session):
        one.append_all(k, v)
        for wrong, error in (
            ({"softcap": 1.0}, InvalidRequest),
            (AttendOptions(null_logit=np.zeros(2, np.float32)), InvalidShape),
            (AttendOptions(mask=np.ones((1, 1, 8), np.bool_)), InvalidShape),
            (AttendOptions(temperature=1e-9), InvalidRequest),
        ):
            for call in (one.attend, one.explain):
                with pytest.raises(error, match="got"):
                    call(0, q[0, :1], options=wrong)
        with pytest.raises(ValueRange):
            one.attend(0, q[0] * np.float32(np.nan), options=AttendOptions(softcap=1.0))


def test_a_bias_counts_against_the_message(connect: Any, address: str) -> None:
    client = connect(address, max_message_bytes=1 << 16)
    with client.open(SPEC) as stream:
        rng = np.random.default_rng(0)
        q, k, v = drawn(SPEC, rng, 1)
        stream.append_all(k, v)
        wide = np.zeros((1, 1, 1 << 15), np.float32)
        with pytest.raises(QuotaExceeded, match="larger than this client's"):
            stream.attend(0, q[0], options=AttendOptions(bias=wide))
        assert stream.attend(0, q[0], options=AttendOptions(bias=wide[..., :9])).shape == (1, 6, 16)
