"""What cannot be meant is refused before anything is sent, as an error of ours; both twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from transports import to

from rondel.client import AsyncAttentionClient, AsyncGenerationClient, AttentionClient, GenerationClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidRequest,
    InvalidShape,
    InvalidSpec,
    RondelError,
    SequenceGap,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=8, window=64)
Q, KV = np.zeros((3, 4, 8), np.float32), np.zeros((3, 2, 8), np.float32)
ALL_Q, ALL_KV = np.zeros((2, 3, 4, 8), np.float32), np.zeros((2, 3, 2, 8), np.float32)

MISSHAPEN = {
    "nothing": None,
    "a list": [[[1.0] * 8] * 2] * 3,
    "a number": 1.0,
    "a text": "k",
    "another thing with a shape": memoryview(KV),
    "float64": KV.astype(np.float64),
    "integers": KV.astype(np.int32),
    "objects": np.full((3, 2, 8), None),
    "an axis too few": KV[0],
    "an axis too many": KV[None],
    "other heads": np.zeros((3, 3, 8), np.float32),
    "another dim": np.zeros((3, 2, 9), np.float32),
    "no axes": np.float32(1).reshape(()),
}


@pytest.fixture
def stream(client: Any) -> Iterator[Any]:
    with client.open(SPEC) as stream:
        yield stream
        assert stream.stats().layer_lengths == (stream.layer_length(0), stream.layer_length(1))


@pytest.mark.parametrize("kind", MISSHAPEN)
def test_arrays_are_refused_as_by_a_session(stream: Any, kind: str) -> None:
    wrong: Any = MISSHAPEN[kind]
    with DecoderSession(SPEC, Arena(budget=16 << 20)) as session:
        for one in (stream, session):
            for call in (
                lambda one=one: one.append(0, wrong, KV),
                lambda one=one: one.append(0, KV, wrong),
                lambda one=one: one.step(0, wrong, KV, KV),
                lambda one=one: one.attend(0, wrong),
                lambda one=one: one.append_all(wrong, ALL_KV),
                lambda one=one: one.append_all(ALL_KV, wrong),
                lambda one=one: one.step_all(wrong, ALL_KV, ALL_KV),
            ):
                with pytest.raises(InvalidShape) as refused:
                    call()
                assert refused.value.got in refused.value.message
                assert refused.value.expected in refused.value.message
    assert stream.length == 0


def test_tokens_that_differ_in_number_are_refused(stream: Any) -> None:
    for call in (
        lambda: stream.append(0, KV, KV[:2]),
        lambda: stream.step(0, Q[:2], KV, KV),
        lambda: stream.append_all(ALL_KV, ALL_KV[:, :2]),
        lambda: stream.step_all(ALL_Q[:, :2], ALL_KV, ALL_KV),
    ):
        with pytest.raises(InvalidShape):
            call()


def test_float16_is_taken_as_well(stream: Any) -> None:
    assert stream.append(0, KV.astype(np.float16), KV) == 3


@pytest.mark.parametrize(
    "number", [-1, 2**63, 2**70, -(2**70), 10**5000], ids=["negative", "2^63", "2^70", "-2^70", "10^5000"]
)
def test_positions_that_no_stream_has(stream: Any, number: int) -> None:
    stream.append(0, KV, KV)
    with pytest.raises(SequenceGap) as gap:
        stream.attend(0, Q, position=number)
    assert gap.value.expected == 3
    with pytest.raises(SequenceGap) as gap:
        stream.truncate(number)
    assert gap.value.expected == 0
    assert stream.generation == 0


@pytest.mark.parametrize("number", [1.0, "1", None, True, (1,), float("nan")], ids=repr)
def test_positions_that_are_no_integers(stream: Any, number: Any) -> None:
    with pytest.raises(InvalidRequest, match="length must be an integer"):
        stream.truncate(number)
    if number is not None:
        with pytest.raises(InvalidRequest, match="position must be an integer"):
            stream.attend(0, Q, position=number)
    with pytest.raises(InvalidRequest, match="tokens must be an integer"):
        stream.chunks(number)
    with pytest.raises(InvalidRequest, match="at_most must be an integer"):
        stream.chunks(1, at_most=number)


def test_numbers_of_chunks_that_cannot_be(stream: Any) -> None:
    for tokens, at_most in ((-1, 5), (5, 0), (5, -1)):
        with pytest.raises(InvalidRequest):
            stream.chunks(tokens, at_most=at_most)
    assert list(stream.chunks(0)) == []
    assert list(stream.chunks(np.int64(3), at_most=np.int32(2))) == [slice(0, 2), slice(2, 3)]


@pytest.mark.parametrize("spec", ["x", None, {"layers": 1}, 5])
def test_only_a_specification_opens_a_stream(client: Any, spec: Any) -> None:
    before = client.info().streams
    with pytest.raises(InvalidSpec, match="spec must be a StreamSpec, got ") as refused:
        client.open(spec)
    assert refused.value.field == "spec"
    assert client.info().streams == before


TWINS = [AttentionClient, GenerationClient, AsyncAttentionClient, AsyncGenerationClient]


@pytest.mark.parametrize("kind", TWINS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("target", value)
            for value in (
                5, None, b"127.0.0.1:1", "", " ", "localhost", "localhost:", ":7411", "h:0", "h:65536", "h:x",
                "h:-1", "h: 1", "a b:1", "\0:1", "h:1\n", "\ud800:1", "h:٣", "unix:", "unix:" + "x" * 108,
            )
        ),
        *(("timeout", value) for value in (0, -1.0, float("inf"), float("nan"), "1", None, True, 10**400)),
        *(("max_message_bytes", value) for value in (0, -1, 1023, (1 << 30) + 1, 2.0**20, "1048576", None)),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, type) else value.__name__,
)  # fmt: skip
def test_settings_of_a_client(kind: Any, field: str, value: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidSpec, match=f"^{field} must be .*, got ") as refused:
        kind(**{"target": "127.0.0.1:1", field: value})
    assert refused.value.field == field
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("target", ["localhost:1", "[::1]:1", "dns:///localhost:1", "unix:/x y", "unix:x"])
def test_addresses_that_are_taken(target: str) -> None:
    with AttentionClient(target, **to(target)) as client:
        assert client.target == target


class TestBatches:
    def test_a_stream_may_occur_once(self, client: Any) -> None:
        with client.open(SPEC) as stream, client.open(SPEC) as other:
            batch = [stream, other, stream]
            with pytest.raises(InvalidRequest, match="a stream may occur once"):
                client.step_batch(0, batch, [Q] * 3, [KV] * 3, [KV] * 3)
            assert (stream.layer_length(0), other.layer_length(0)) == (0, 0)

    @pytest.mark.parametrize("wrong", [None, 5, "ab", b"ab"])
    def test_only_sequences_make_one(self, client: Any, wrong: Any) -> None:
        with client.open(SPEC) as stream:
            good: list[Any] = [[stream], [Q], [KV], [KV]]
            for index, name in enumerate(("streams", "qs", "ks", "vs")):
                with pytest.raises(InvalidRequest, match=f"^{name} must be a sequence"):
                    client.step_batch(0, *good[:index], wrong, *good[index + 1 :])
            with pytest.raises(InvalidRequest, match="streams of a client, got int"):
                client.step_batch(0, [5], [Q], [KV], [KV])

    def test_what_is_wrong_with_one_stream_is_its_own(self, client: Any) -> None:
        deep = StreamSpec.uniform(layers=3, query_heads=4, kv_heads=2, head_dim=8, window=64)
        with client.open(SPEC) as first, client.open(deep) as second, client.open(deep) as third:
            streams = [first, second, third]
            outcomes = client.step_batch(2, streams, [Q] * 3, [KV, KV, None], [KV] * 3)
            assert [type(outcome.error).__name__ for outcome in outcomes] == [
                "InvalidLayer",
                "NoneType",
                "InvalidShape",
            ]
            assert outcomes[1].out.shape == Q.shape
            assert [stream.layer_length(1) for stream in streams] == [0, 0, 0]
            assert (second.layer_length(2), third.layer_length(2)) == (3, 0)
            (only,) = client.step_batch(2**70, [first], [Q], [KV], [KV])
            assert isinstance(only.error, RondelError)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        ("x", {"stop": "zf"}, InvalidRequest),
        ("x", {"stop": b"zf"}, InvalidRequest),
        ("x", {"stop": ""}, InvalidRequest),
        ("x", {"stop": 5}, InvalidRequest),
        ("x", {"stop": None}, InvalidRequest),
        ("x", {"stop": ["a", 5]}, InvalidRequest),
        ("x", {"stop": [b"a"]}, InvalidRequest),
        ("x", {"stop": ["\ud800"]}, InvalidRequest),
        ("x", {"temperature": "hot"}, InvalidRequest),
        ("x", {"model": 5}, InvalidRequest),
        ("x", {"seed": -1}, InvalidRequest),
        ("x", {"window": 2**70}, InvalidRequest),
        ("x", {"storage": 8}, InvalidSpec),
        ("x", {"storage": None}, InvalidSpec),
        ("x", {"colour": "red"}, InvalidRequest),
        ("x", {"timeout": "long"}, InvalidSpec),
        ("\ud800", {}, InvalidRequest),
        (None, {}, InvalidRequest),
        (5, {}, InvalidRequest),
        (b"ab", {}, InvalidRequest),
        (bytearray(b"ab"), {}, InvalidRequest),
        (["ab", "cd"], {}, InvalidRequest),
        (("user", "hi"), {}, InvalidRequest),
        ([("user", "hi", "there")], {}, InvalidRequest),
        ([("user", "hi"), 5], {}, InvalidRequest),
        ([5, ("user", "hi")], {}, InvalidRequest),
        ([("user", 5)], {}, InvalidRequest),
        ([([], "hi")], {}, InvalidRequest),
        ([-1], {}, InvalidRequest),
        ([1.5], {}, InvalidRequest),
        ([None], {}, InvalidRequest),
    ],
    ids=repr,
)
def test_generations_that_cannot_be_asked_for(
    prompt: Any, options: dict[str, Any], error: type[Exception], connect: Callable[..., Any]
) -> None:
    # Nobody listens there: whatever was sent would be ServerUnavailable.
    client = connect("127.0.0.1:1", GenerationClient)
    with pytest.raises(error) as refused:
        list(client.generate(prompt, **options))
    assert type(refused.value) is error
